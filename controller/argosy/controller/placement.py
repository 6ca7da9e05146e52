"""Where the roles run: child processes on loopback (default), or cores in this process for debugging.

Both give the loop the same `Services`; only construction differs. A replay has no rollout and reward servers, and
rollouts alone no trainer: who asks for one all the same is told so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from argosy.config import Config
from argosy.controller.context import Services
from argosy.controller.control import Scaler
from argosy.controller.launch import LocalFleet
from argosy.controller.launch.lock import RunFolderLock
from argosy.controller.launch.plan import plan_members, services_of
from argosy.controller.references import open_references
from argosy.controller.rewards.connect import check_external, open_router
from argosy.controller.rewards.router import RewardRouter
from argosy.controller.roster import Roster
from argosy.controller.rosters import open_rollouts
from argosy.membership.interface import Membership
from argosy.membership.memory import MemoryMembership
from argosy.roles.policy import Policy
from argosy.roles.reward import Reward
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.types.errors import StateError
from argosy.types.records import Member

Result = TypeVar("Result")

BUILDERS: dict[str, str] = {
    "trainer": "argosy.trainer.build:build_core",
    "critic": "argosy.trainer.build:build_critic",
    "rollout": "argosy.rollout.build:build_core",
    "reward": "argosy.reward.build:build_core",
    "reference": "argosy.reference.build:build_core",
}
"""Role → "module:function", imported only when this process is to run it: the controller itself has no torch."""


class Race(Protocol):
    """How work is done that needs all services."""

    def __call__(self, work: Coroutine[Any, Any, Result], *, setbacks: bool = False) -> Awaitable[Result]:
        """The work's result, unless a service dies meanwhile: then the work is ended, and the first cause raised.

        With `setbacks` that is a SetbackError where the service is on its way back: `Placement.recover` waits for it.
        """
        ...


@dataclass(slots=True)
class Placement:
    """The roles of one run, ready to be called."""

    services: Services
    """Others after `recover`."""
    membership: Membership
    race: Race
    come_back: Callable[[bool], Awaitable[Services]] | None = None
    """What `recover` does; None where nothing is ever on its way back."""
    scale: Scaler | None = None
    """Starts and drains servers; None where this process starts none."""

    async def recover(self, *, fresh: bool) -> None:
        """After a SetbackError: wait until all services are there again. `fresh`: with trainers that are as at the very
        beginning, since there is no checkpoint that they could load."""
        if self.come_back is None:
            raise StateError("the services of this placement don't come back")
        self.services = await self.come_back(fresh)


class Absent:
    """Stands where a run has no service of a role; a call of it is a defect, and says which role is meant."""

    def __init__(self, role: str) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StateError(f"this run has no {self._role}, which is asked for {name}")


NO_REWARD = cast("Reward", Absent("reward service"))
NO_TRAINER = cast("Policy", Absent("trainer"))


@asynccontextmanager
async def open_placement(config: Config, run_dir: Path) -> AsyncIterator[Placement]:
    """Start what the run needs and end all of it again."""
    opened = _in_process(config, run_dir) if config.argosy.placement == "inprocess" else _local(config, run_dir)
    async with opened as placement:
        yield placement


@asynccontextmanager
async def _local(config: Config, run_dir: Path) -> AsyncIterator[Placement]:
    from argosy.rpc.clients.critic import CriticClient
    from argosy.rpc.clients.policy import PolicyClient

    options, policy = rpc_settings(config)
    scores = config.argosy.replay.path is None
    if scores:
        await check_external(config, options)
    async with LocalFleet(config, run_dir) as fleet, AsyncExitStack() as stack:
        connected: dict[tuple[str, str], Any] = {}

        def connect(factory: Callable[..., Any], member: Member) -> Any:
            """The client of this life of a member."""
            life = (member.member_id, member.incarnation)
            if life not in connected:
                client = factory(member.address, member_id=member.member_id, options=options, policy=policy)
                stack.push_async_callback(client.close)
                connected[life] = client
            return connected[life]

        def one(role: str, factory: Callable[..., Any], absent: Any = None) -> Any:
            members = fleet.members.get(role, ())
            return connect(factory, members[0]) if members else absent

        rosters: dict[str, Roster[Any]] = {}
        reference = None
        if config.argosy.replay.path is None:
            members = fleet.members.get("rollout", ())
            opened = open_rollouts(config, fleet.membership, members, options, policy)
            rosters["rollout"] = await stack.enter_async_context(opened)
        if members := fleet.members.get("reference", ()):
            references = open_references(config, fleet.membership, members, options, policy)
            reference, rosters["reference"] = await stack.enter_async_context(references)
        roster = rosters.get("rollout")
        router: RewardRouter | None = None
        if scores:
            opening = open_router(config, options, policy, membership=fleet.membership)
            router = await stack.enter_async_context(opening)
        fleet.follow(rosters, router)
        services = Services(
            rollouts={} if roster is None else roster.clients,
            reward=NO_REWARD if router is None else router,
            policy=one("trainer", PolicyClient, NO_TRAINER),
            reference=reference,
            critic=one("critic", CriticClient),
            pools={} if roster is None else roster.pools,
            lost=frozenset() if roster is None else roster.lost,
            roster=roster,
        )

        async def come_back(fresh: bool) -> Services:
            await fleet.recover(fresh=("trainer", "critic") if fresh else ())
            for role, followed in rosters.items():
                followed.renew(fleet.members.get(role, ()))
            return dataclasses.replace(
                services,
                policy=one("trainer", PolicyClient, NO_TRAINER),
                critic=one("critic", CriticClient),
            )

        yield Placement(services, fleet.membership, fleet.race, come_back, fleet.scale)


def rpc_settings(config: Config) -> tuple[RpcOptions, RetryPolicy]:
    """`argosy.rpc.*` as the clients take it."""
    rpc = config.argosy.rpc
    policy = RetryPolicy(
        max_attempts=rpc.retry_attempts,
        first_backoff_s=rpc.retry_initial_backoff_s,
        max_backoff_s=rpc.retry_max_backoff_s,
    )
    return RpcOptions(max_message_bytes=rpc.max_message_bytes), policy


@asynccontextmanager
async def _in_process(config: Config, run_dir: Path) -> AsyncIterator[Placement]:
    options, policy = rpc_settings(config)
    scores, trains = config.argosy.replay.path is None, not config.argosy.rollout_only
    if scores:
        await check_external(config, options)
    lock = RunFolderLock(run_dir)
    lock.acquire()
    async with AsyncExitStack() as stack:
        stack.callback(lock.release)
        built: list[Any] = []

        async def build(role: str, seen: Config = config, **options: Any) -> Any:
            module, _, name = BUILDERS[role].partition(":")
            core = await asyncio.to_thread(getattr(importlib.import_module(module), name), seen, **options)
            built.append(core)
            close = getattr(core, "close", None)
            if close is not None:
                stack.push_async_callback(_close, close)
            return core

        planned = [member for member in plan_members(config, services_of(config)) if member.role == "rollout"]
        scorers = {
            name: await build("reward", config.for_reward(name))
            for name, service in config.rewards.items()
            if scores and not service.address
        }
        router = open_router(config, options, policy, cores=scorers)
        services = Services(
            policy=await build("trainer") if trains else NO_TRAINER,
            rollouts={
                one.member_id: await build("rollout", config.for_pool(one.pool), start_stale=trains) for one in planned
            },
            pools={one.member_id: one.pool for one in planned},
            reward=await stack.enter_async_context(router) if scores else NO_REWARD,
            reference=await build("reference") if trains and config.needs_reference else None,
            critic=await build("critic") if trains and config.needs_critic else None,
        )
        for rollout in services.rollouts.values():
            await cast("Any", rollout).start()
        membership = MemoryMembership()
        stack.push_async_callback(membership.close)
        watched = [core for core in built if hasattr(core, "wait_failed")]

        async def race(work: Coroutine[Any, Any, Result], *, setbacks: bool = False) -> Result:
            return await _unless_failed(work, [core.wait_failed() for core in watched])

        yield Placement(services, membership, race)


async def _unless_failed(
    work: Coroutine[Any, Any, Result], failures: Sequence[Coroutine[Any, Any, BaseException]]
) -> Result:
    """The result of the work; the first failure of a core ends it, as the death of a service would."""
    working = asyncio.ensure_future(work)
    failing = [asyncio.ensure_future(failure) for failure in failures]
    try:
        await asyncio.wait({working, *failing}, return_when=asyncio.FIRST_COMPLETED)
        for failure in failing:
            if failure.done():
                raise failure.result()
        return working.result()
    finally:
        for task in (working, *failing):
            task.cancel()
        await asyncio.gather(working, *failing, return_exceptions=True)


async def _close(close: Callable[[], Any]) -> None:
    """Cores close in a coroutine or in a plain function."""
    result = close()
    if asyncio.iscoroutine(result):
        await result
