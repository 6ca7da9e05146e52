"""A service is ready when its member record and its gRPC health both say so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from argosy.membership import Membership
from argosy.types.errors import DeadlineError
from argosy.types.records import Member, MemberState

_POLL_S = 0.1
_CALL_S = 2.0


async def wait_ready(
    membership: Membership,
    incarnations: Mapping[str, str],
    deadline: float,
    log_dir: Path,
    *,
    pools: Mapping[tuple[str, str], int] | None = None,
) -> tuple[Member, ...]:
    """Wait until each member of `incarnations` (member id → incarnation) is past JOINING and SERVING.

    So must be as many servers of each of `pools` ((role, pool) → count) that others start: the first to come, by id.
    STALE counts: such a server is up and waits for its weights. `deadline` is on time.monotonic's clock. Raises
    DeadlineError that names who is missing and where to look.
    """
    pools = pools or {}
    view = _View(lambda member: _is_this_life(member, incarnations) or (member.role, member.pool) in pools)
    following = asyncio.create_task(view.follow(membership), name="wait for the fleet")
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            while not following.done():
                await view.changed()
                serving = view.serving
                joiners = _joiners(pools, [view.seen[member_id] for member_id in sorted(serving)])
                if serving.issuperset(incarnations) and len(joiners) == sum(pools.values()):
                    return (*(view.seen[member_id] for member_id in incarnations), *joiners)
            following.result()
    except TimeoutError as error:
        lines = [_complaint(incarnations, view.seen, view.serving, log_dir), *_absent(pools, view.seen, view.serving)]
        raise DeadlineError("\n".join(lines)) from error
    finally:
        following.cancel()
        await view.close()
        await asyncio.gather(following, return_exceptions=True)
    raise DeadlineError("membership was closed before the fleet was ready")


class _View:
    """Who is there, and who of them serves. Each is asked beside the others: one that is gone, and whose lease has not
    ended yet, holds nobody up."""

    def __init__(self, matters: Callable[[Member], bool]) -> None:
        self.seen: dict[str, Member] = {}
        self._matters = matters
        self._probes: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def serving(self) -> set[str]:
        """Ids of those whose health has said so."""
        return {name for name, member in self.seen.items() if (probe := self._probes.get(_life(member))) and _ok(probe)}

    async def follow(self, membership: Membership) -> None:
        """Keep up until cancelled, or until membership is closed."""
        try:
            async for snapshot in membership.watch():
                self.seen = {member.member_id: member for member in snapshot if self._matters(member)}
                for member in self.seen.values():
                    life = _life(member)
                    if member.state is not MemberState.JOINING and life not in self._probes:
                        self._probes[life] = asyncio.create_task(_wait_serving(member.address))
                        self._probes[life].add_done_callback(lambda _: self._changed.set())
                self._changed.set()
        finally:
            self._changed.set()

    async def changed(self) -> None:
        """Until anything may be other than at the last call."""
        await self._changed.wait()
        self._changed.clear()

    async def close(self) -> None:
        """End what still asks."""
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)


def _life(member: Member) -> tuple[str, str, str]:
    return member.member_id, member.incarnation.partition(".")[0], member.address


def _ok(probe: asyncio.Task[None]) -> bool:
    return probe.done() and not probe.cancelled() and probe.exception() is None


def _joiners(pools: Mapping[tuple[str, str], int], serving: Sequence[Member]) -> list[Member]:
    """At most the wanted number of each pool."""
    return [
        member
        for pool, count in pools.items()
        for member in [one for one in serving if (one.role, one.pool) == pool][:count]
    ]


def _absent(pools: Mapping[tuple[str, str], int], seen: Mapping[str, Member], serving: set[str]) -> Iterator[str]:
    for (role, name), count in pools.items():
        there = sum((one.role, one.pool) == (role, name) and one.member_id in serving for one in seen.values())
        if there < count:
            what, option = {
                "rollout": (f"pool {name!r}", f" --pool {name}"),
                "reward": (f"the reward service {name!r}", f" --name {name}"),
            }.get(role, (f"the role {role!r}", ""))
            yield (
                f"  {count - there} of {count} servers of {what}; start each with `argosy serve {role}{option}`, the "
                "run's configuration, and its argosy.membership.endpoints and prefix"
            )


def _is_this_life(member: Member, incarnations: Mapping[str, str]) -> bool:
    wanted = incarnations.get(member.member_id)
    return wanted is not None and member.incarnation.partition(".")[0] == wanted


async def _wait_serving(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack the methods
        while True:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_CALL_S)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass  # not listening yet; the caller's deadline bounds us
            await asyncio.sleep(_POLL_S)


def _complaint(incarnations: Mapping[str, str], seen: Mapping[str, Member], serving: set[str], log_dir: Path) -> str:
    lines = ["the fleet was not ready in time (argosy.startup_timeout_s):"]
    for member_id in incarnations:
        if member_id not in serving:
            member = seen.get(member_id)
            state = "has not registered" if member is None else f"is {member.state.value}, its health is not SERVING"
            lines.append(f"  {member_id} {state}; see {log_dir / f'{member_id}.log'}")
    return "\n".join(lines)
