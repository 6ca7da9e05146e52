"""`argosy.placement=fleet`: all services were started by others (`argosy serve …`) and are found through membership.

Nobody here supervises them. A trainer, critic or reference that leaves the fleet, or comes back as another process, is
a setback: the run waits for one and goes back to its last checkpoint. Rollout and reward servers come and go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from argosy.config import Config
from argosy.controller.candidacy import Seat, wanted_servers
from argosy.controller.context import Services
from argosy.controller.launch.errors import SetbackError
from argosy.controller.launch.readiness import wait_ready
from argosy.controller.placement import NO_REWARD, NO_TRAINER, Placement, rpc_settings
from argosy.controller.rewards.connect import check_external, open_router
from argosy.controller.rosters import open_rollouts
from argosy.rpc.channel import open_channel
from argosy.rpc.clients.critic import CriticClient
from argosy.rpc.clients.policy import PolicyClient
from argosy.rpc.clients.reference import ReferenceClient
from argosy.types.errors import DeadlineError, UnavailableError
from argosy.types.records import Leader, Member

log = logging.getLogger(__name__)
Result = TypeVar("Result")

CLIENTS: dict[str, Callable[..., Any]] = {"trainer": PolicyClient, "critic": CriticClient, "reference": ReferenceClient}
"""Roles of which a run has one, and can't do without."""
RETURN_S = 5.0
"""From the end of a member's lease to when it is asked whether it is there: a member whose lease was lost (it stood
still, or etcd did) is back within this."""
_CALL_S = 2.0


@asynccontextmanager
async def open_fleet(config: Config, seat: Seat) -> AsyncIterator[Placement]:
    """Find the services of a run for the controller that leads it. They are left as they are.

    Raises DeadlineError that names who is missing, and how to start it.
    """
    options, policy = rpc_settings(config)
    scores = config.argosy.replay.path is None
    if scores:
        await check_external(config, options)
    members = await _wait_for_all(config, seat, at_least=seat.takes_over)
    async with AsyncExitStack() as stack:

        def connect(member: Member) -> Any:
            client = CLIENTS[member.role](member.address, member_id=member.member_id, options=options, policy=policy)
            stack.push_async_callback(client.close)
            return client

        ones = {member.role: member for member in members if member.role in CLIENTS}
        roster = None
        if scores:
            rollouts = [member for member in members if member.role == "rollout"]
            leader = Leader(config.argosy.run_id or "", seat.leadership.term)
            opened = open_rollouts(config, seat.membership, rollouts, options, policy, leader)
            roster = await stack.enter_async_context(opened)
        router = open_router(config, options, policy, membership=seat.membership)
        clients = {role: connect(member) for role, member in ones.items()}
        services = Services(
            rollouts={} if roster is None else roster.clients,
            reward=await stack.enter_async_context(router) if scores else NO_REWARD,
            policy=clients.get("trainer", NO_TRAINER),
            reference=clients.get("reference"),
            critic=clients.get("critic"),
            pools={} if roster is None else roster.pools,
            lost=frozenset() if roster is None else roster.lost,
            roster=roster,
        )
        watch = await stack.enter_async_context(_watched(seat, ones, config.argosy.membership.lease_ttl_s))

        async def come_back(fresh: bool) -> Services:
            found = await _wait_for_all(config, seat, at_least=True)
            ones.clear()
            ones.update({member.role: member for member in found if member.role in CLIENTS})
            watch.renew(ones)
            if roster is not None:
                roster.renew([member for member in found if member.role == "rollout"])
            again = {role: connect(member) for role, member in ones.items()}
            return replace(
                services, policy=again["trainer"], reference=again.get("reference"), critic=again.get("critic")
            )

        yield Placement(services, seat.membership, watch.race, come_back)


async def _wait_for_all(config: Config, seat: Seat, *, at_least: bool) -> Sequence[Member]:
    deadline = time.monotonic() + config.argosy.startup_timeout_s
    wanted = wanted_servers(config, at_least=at_least)
    return await wait_ready(seat.membership, {}, deadline, config.run_folder / "logs", pools=wanted)


@asynccontextmanager
async def _watched(seat: Seat, ones: dict[str, Member], ttl_s: float) -> AsyncIterator[FleetWatch]:
    watch = FleetWatch(ones, ttl_s)
    following = asyncio.create_task(watch.follow(seat), name="follow the services")
    try:
        yield watch
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        watch.close()


class FleetWatch:
    """Notices when a service that a run can't do without is gone.

    Args:
        ones: Role → its one member.
        ttl_s: Of a member's lease.
    """

    def __init__(self, ones: dict[str, Member], ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._absent: dict[str, asyncio.Task[None]] = {}
        self.renew(ones)

    def renew(self, ones: dict[str, Member]) -> None:
        """From now on it is about these."""
        self._ones = dict(ones)
        self._gone: asyncio.Future[SetbackError] = asyncio.get_running_loop().create_future()

    async def follow(self, seat: Seat) -> None:
        """Keep up with membership until cancelled. While membership is away, all are taken for there."""
        async for snapshot in seat.membership.watch():
            there = {member.member_id: member for member in snapshot}
            for known in list(self._ones.values()):
                now = there.get(known.member_id)
                if now is not None and _life(now) != _life(known):
                    self._lose(known, "was started again, and has nothing of this run")
                elif now is None and known.member_id not in self._absent:
                    waiting = asyncio.create_task(self._wait_for(known), name=f"is {known.member_id} there")
                    self._absent[known.member_id] = waiting
                elif now is not None and known.member_id in self._absent:
                    self._absent.pop(known.member_id).cancel()

    async def race(self, work: Coroutine[Any, Any, Result], *, setbacks: bool = False) -> Result:
        """The result of the work. With `setbacks`, SetbackError when a service is gone, and the work is ended; when a
        call fails because of that, membership gets the time to say so."""
        if not setbacks:
            return await work
        task, gone = asyncio.ensure_future(work), self._gone
        ends: set[asyncio.Future[Any]] = {task, gone}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done() and isinstance(_failure_of(task), (UnavailableError, DeadlineError)):
                await asyncio.wait({gone}, timeout=self._ttl_s + RETURN_S + 2 * _CALL_S)
            if gone.done():
                raise gone.result() from _failure_of(task)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def close(self) -> None:
        """End what still waits."""
        for waiting in self._absent.values():
            waiting.cancel()

    async def _wait_for(self, member: Member) -> None:
        """A service whose entry is gone may be cut off from etcd only: it counts as there as long as it serves."""
        told = False
        while True:
            await asyncio.sleep(RETURN_S)
            if not await _serves(member.address):
                break
            if not told:
                log.warning("%s has no entry in membership, and serves: going on with it", member.member_id)
            told = True
        self._absent.pop(member.member_id, None)
        self._lose(member, "has left the fleet")

    def _lose(self, member: Member, what: str) -> None:
        if not self._gone.done() and self._ones.get(member.role) == member:
            log.error("%s %s", member.member_id, what)
            cause = UnavailableError(f"{member.member_id} at {member.address} {what}; the run can't go on without it")
            self._gone.set_result(SetbackError(member.member_id, what, cause))


def _life(member: Member) -> str:
    return member.incarnation.partition(".")[0]


def _failure_of(task: asyncio.Future[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _serves(address: str) -> bool:
    async with open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack the methods
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_CALL_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
