"""The reference servers of a run as one: a batch is shared out over those that are there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from argosy.config import Config
from argosy.controller.roster import Roster, keeps_servers
from argosy.controller.rosters import open_roster
from argosy.membership.interface import Membership
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ArgosyError, DeadlineError, StateError, UnavailableError
from argosy.types.records import Member, MemberState

if TYPE_CHECKING:
    from argosy.rpc.clients.reference import ReferenceClient
    from argosy.rpc.options import RpcOptions
    from argosy.rpc.retry import RetryPolicy

log = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]

AWAY = (UnavailableError, DeadlineError, StateError)
"""What one server's answer may be without being the batch's loss."""
MIN_ROWS = 8
"""A share of fewer rows is not worth a server of its own."""


class References:
    """Implements `argosy.roles.reference.Reference` over the servers of a roster.

    One server gets the batch as it is. Several get shares of about equal numbers of tokens; the share of one that
    fails goes to the others. With none, a call waits for one to join, for a bounded time.

    Args:
        roster: Of ReferenceClients, or of cores in tests.
        patience_s: Seconds to wait for a server.
    """

    def __init__(self, roster: Roster[Any], patience_s: float) -> None:
        self._roster = roster
        self._patience_s = patience_s
        self._changed = asyncio.Event()
        roster.subscribe(self)

    def joined(self, member: Member) -> None:
        """See Listener."""
        self._changed.set()

    def changed(self, member: Member) -> None:
        """See Listener."""
        self._changed.set()

    def left(self, member: Member) -> None:
        """See Listener: its calls fail by themselves."""

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """See Reference. Raises what the last server raised when none is left that could do a share, and
        UnavailableError when there is none at all."""
        end = time.monotonic() + deadline_s

        async def ask(member: str, rows: Rows) -> list[tuple[Rows, TrajectoryBatch]]:
            whole = len(rows) == len(batch)
            answer = await self._roster.clients[member].compute_log_probs(
                batch if whole else batch.select(rows),
                columns,
                temperature=temperature,
                deadline_s=max(end - time.monotonic(), 0.001),
            )
            return [(rows, answer)]

        async def share_out(rows: Rows, failed: frozenset[str]) -> list[tuple[Rows, TrajectoryBatch]]:
            members = [member for member in await self._ready(end) if member not in failed]
            if not members:
                raise UnavailableError(f"no reference server is left: {', '.join(sorted(failed)) or 'none'} failed")
            shares = zip(members, split(lengths[rows], len(members)), strict=False)
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(serve(member, rows[share], failed)) for member, share in shares]
            return [part for task in asked for part in task.result()]

        async def serve(member: str, rows: Rows, failed: frozenset[str]) -> list[tuple[Rows, TrajectoryBatch]]:
            try:
                return await ask(member, rows)
            except AWAY as error:
                others = set(self._in_service()) - failed - {member}
                if not others or time.monotonic() >= end:
                    raise
                log.warning("%d rows go to another reference server: %s", len(rows), error)
                return await share_out(rows, failed | {member})

        lengths = np.diff(batch.ragged("response_ids").offsets) + np.diff(batch.ragged("prompt_ids").offsets)
        try:
            parts = await share_out(np.arange(len(batch)), frozenset())
        except BaseExceptionGroup as group:
            raise _first(group) from None
        return parts[0][1] if len(parts) == 1 else merge(parts)

    async def _ready(self, end: float) -> list[str]:
        """Those that take calls, in order; waits for one if there is none."""
        timeout_s = min(self._patience_s, end - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (found := self._in_service()):
                    log.warning("no reference server is there; waiting %.0f s for one", timeout_s)
                    self._changed.clear()
                    await self._changed.wait()
                return found
        raise UnavailableError(f"no reference server is there, and none has joined within {timeout_s:.0f} s")

    def _in_service(self) -> list[str]:
        members = [self._roster.member(name) for name in self._roster.clients]
        return [one.member_id for one in members if one is not None and one.state is MemberState.READY]


def split(lengths: npt.NDArray[np.int64], count: int) -> list[Rows]:
    """Row numbers in at most `count` runs of about equal sums of `lengths`, none empty.

    >>> [part.tolist() for part in split(np.full(20, 5), 2)]
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]
    """
    count = max(1, min(count, len(lengths) // MIN_ROWS))
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count) + 1 if len(ends) else []
    return [part for part in np.split(np.arange(len(lengths)), cuts) if len(part)]


def merge(parts: Sequence[tuple[Rows, TrajectoryBatch]]) -> TrajectoryBatch:
    """The answers to shares as the answer to the whole, in its order."""
    table = pa.concat_tables([answer.table for _, answer in parts])
    return TrajectoryBatch(table).select(np.argsort(np.concatenate([rows for rows, _ in parts])))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = next((one for one in error.exceptions if not isinstance(one, ArgosyError)), error.exceptions[0])
    return error


@asynccontextmanager
async def open_references(
    config: Config, membership: Membership, members: Sequence[Member], options: RpcOptions, policy: RetryPolicy
) -> AsyncIterator[tuple[References, Roster[ReferenceClient]]]:
    """The reference servers of a run: `members`, and those who come."""
    from argosy.rpc.clients.reference import ReferenceClient

    def connect(member: Member) -> ReferenceClient:
        return ReferenceClient(member.address, member_id=member.member_id, options=options, policy=policy)

    opened = open_roster("reference", connect, membership, members, fixed=keeps_servers(config))
    async with opened as roster:
        yield References(roster, config.argosy.startup_timeout_s), roster
