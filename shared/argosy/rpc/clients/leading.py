"""Who leads a run, found through membership, and a run watched over all of its leaders."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable

from argosy.membership.interface import Membership
from argosy.rpc.clients.controller import ControllerClient
from argosy.types.errors import ArgosyError, UnavailableError
from argosy.types.records import Leader, Member, MemberState, RunStatus

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2


def leader_capabilities(leader: Leader) -> dict[str, str]:
    """What a controller's entry says of itself: the run and the term that it leads, and where it is."""
    return {
        "run_id": leader.run_id,
        "term": str(leader.term),
        "pid": str(os.getpid()),
        "hostname": socket.gethostname(),
    }


def term_of(member: Member) -> int:
    """The term that a controller's entry names; 0 where it names none."""
    term = member.capabilities.get("term", "")
    return int(term) if term.isdigit() else 0


async def find_leader(membership: Membership, run_id: str = "") -> Member | None:
    """The controller that leads; of a run, or of whichever there is. None while nobody does.

    For the time of a lease there may be entries of two leaders: the one of the higher term counts.
    """
    found = [
        member
        for member in await membership.members("controller")
        if member.state is MemberState.READY and run_id in ("", member.capabilities.get("run_id", run_id))
    ]
    return max(found, key=term_of, default=None)


async def follow_run(
    membership: Membership,
    run_id: str = "",
    *,
    patience_s: float = 60.0,
    connect: Callable[[str], ControllerClient] = ControllerClient,
) -> AsyncIterator[RunStatus]:
    """The run as it is, again at each change, also after another controller has taken over; ends when it has finished.

    A state "failed" of one leader is yielded, and what a standby makes of it follows. Raises UnavailableError when
    nobody leads for `patience_s`, which must be longer than a lease; the last leader's failure is its cause.
    """
    deadline, last, newest_term = time.monotonic() + patience_s, None, 0
    while True:
        leader = await _ask(membership, run_id)
        if leader is None or term_of(leader) < newest_term:
            if time.monotonic() > deadline:
                raise UnavailableError(f"nobody leads {run_id or 'a run'} here since {patience_s:g} s") from last
            await asyncio.sleep(_POLL_S)
            continue
        client = connect(leader.address)
        try:
            async for status in client.watch_run():
                newest_term = max(newest_term, status.term)
                deadline = time.monotonic() + patience_s
                yield status
                if status.state == "finished":
                    return
                if status.state == "failed":  # of this leader: whoever comes next has a higher term
                    newest_term = status.term + 1
        except ArgosyError as error:
            _LOG.info("%s is gone, looking for who leads now: %s", leader.member_id, error)
            last = error
        finally:
            await client.close()
        await asyncio.sleep(_POLL_S)
        if time.monotonic() > deadline:
            raise UnavailableError(f"{leader.member_id} leads, and doesn't answer since {patience_s:g} s") from last


async def _ask(membership: Membership, run_id: str) -> Member | None:
    try:
        return await find_leader(membership, run_id)
    except UnavailableError as error:
        _LOG.info("membership can't be asked who leads: %s", error)
        return None
