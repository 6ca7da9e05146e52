"""`argosy scale` over real child processes, which only sleep."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from argosy.config import Config
from argosy.controller.launch.plan import PlannedMember, plan_members, services_of
from argosy.controller.launch.process import ChildSpec
from argosy.controller.launch.scaling import MAX_SERVERS, Scaling
from argosy.controller.launch.supervisor import Supervisor
from argosy.types.errors import InvalidInputError, StateError, UnavailableError
from argosy.types.records import ScaleChange, ServerCount

SLOW_TO_LEAVE = (
    "import signal, time; signal.signal(15, lambda *_: (time.sleep(1), exit(0))); print(1, flush=True); time.sleep(600)"
)


class Fleet:
    """Rollout and reward servers of a configuration, as processes that take a second to leave."""

    def __init__(self, config: Config, supervisor: Supervisor) -> None:
        self.planned = plan_members(config, services_of(config))
        self.supervisor = supervisor
        self.scaling = Scaling(config, self.planned, self.start, supervisor.retire, self.claim)
        self.joined: set[str] = set()
        self.etcd_is_away = False

    async def claim(self, names: Iterable[str]) -> str:
        """As `EtcdMembership.claim_name`, with those that have joined by hand."""
        if self.etcd_is_away:
            raise UnavailableError("etcd is away")
        await asyncio.sleep(0.01)
        return next(name for name in names if name not in self.joined)

    async def start(self, member: PlannedMember) -> None:
        await self.supervisor.start(ChildSpec(member.member_id, [sys.executable, "-c", SLOW_TO_LEAVE]))

    async def start_all(self) -> None:
        for member in list(self.planned):
            if member.role in ("rollout", "reward"):
                await self.start(member)

    def running(self) -> list[str]:
        return sorted(child.spec.name for child in self.supervisor.children if child.returncode is None)


async def test_servers_are_started_and_drained(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=10) as supervisor:
        fleet = Fleet(Config(), supervisor)
        await fleet.start_all()
        assert fleet.running() == ["reward-0", "rollout-0"]
        more = await fleet.scaling.scale([ServerCount("rollout", 3), ServerCount("reward", 2)])
        assert more == [
            ScaleChange("rollout", "default", 1, 3, ("rollout-1", "rollout-2")),
            ScaleChange("reward", "default", 1, 2, ("reward-1",)),
        ]
        assert fleet.running() == ["reward-0", "reward-1", "rollout-0", "rollout-1", "rollout-2"]
        [less] = await fleet.scaling.scale([ServerCount("rollout", 1)])
        assert less == ScaleChange("rollout", "default", 3, 1, (), ("rollout-1", "rollout-2"))
        [again] = await fleet.scaling.scale([ServerCount("rollout", 2)])
        assert again == ScaleChange("rollout", "default", 1, 2, ("rollout-3",)), "those that drain keep their ids"
        async with asyncio.timeout(30):
            while fleet.running() != ["reward-0", "reward-1", "rollout-0", "rollout-3"]:  # noqa: ASYNC110 - processes
                await asyncio.sleep(0.01)
        assert not supervisor.failed.done(), "nobody died"
        [same] = await fleet.scaling.scale([ServerCount("rollout", 2)])
        assert (same.started, same.draining) == ((), ())
        await fleet.scaling.close()


async def test_ids_of_servers_that_have_joined_by_hand_are_left_to_them(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        fleet = Fleet(Config(), supervisor)
        fleet.joined = {"rollout-1", "rollout-3"}
        [change] = await fleet.scaling.scale([ServerCount("rollout", 3)])
        assert change.started == ("rollout-2", "rollout-4")
        fleet.etcd_is_away = True
        with pytest.raises(UnavailableError):
            await fleet.scaling.scale([ServerCount("rollout", 1), ServerCount("reward", 2)])
        assert fleet.running() == ["rollout-2", "rollout-4"], "nothing is drained either"


async def test_two_at_one_time_make_one_number_of_servers(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        fleet = Fleet(Config(), supervisor)
        await asyncio.gather(*(fleet.scaling.scale([ServerCount("rollout", 3)]) for _ in range(2)))
        assert fleet.running() == ["rollout-1", "rollout-2"]


def config(**values: object) -> Config:
    return Config().with_values({f"argosy.{name.replace('__', '.')}": value for name, value in values.items()})


POOLS = config(pools={"fast": {"count": 2}, "far": {"count": 1, "remote": True}})


@pytest.mark.parametrize(
    ("seen", "wanted", "error", "text"),
    [
        (Config(), ServerCount("trainer", 2), InvalidInputError, "'trainer' can't be scaled"),
        (Config(), ServerCount("rollout", 0), InvalidInputError, "got 0; wants 1 to"),
        (Config(), ServerCount("rollout", MAX_SERVERS + 1), InvalidInputError, f"wants 1 to {MAX_SERVERS}"),
        (Config(), ServerCount("rollout", 2, "fast"), InvalidInputError, "there is no pool 'fast'; wants rollout=2"),
        (
            POOLS,
            ServerCount("rollout", 2),
            InvalidInputError,
            "it isn't clear which pool is meant; wants rollout/far=2, rollout/fast=2",
        ),
        (POOLS, ServerCount("rollout", 2, "far"), StateError, "pool 'far' is remote"),
        (config(deterministic=True), ServerCount("rollout", 2), StateError, "argosy.deterministic=true keeps"),
        (config(colocated=True), ServerCount("rollout", 2), StateError, "argosy.colocated=true keeps"),
        (config(replay__path="record"), ServerCount("reward", 2), StateError, "replays a record"),
    ],
)
async def test_what_can_t_be_is_refused_and_changes_nothing(
    tmp_path: Path, seen: Config, wanted: ServerCount, error: type[Exception], text: str
) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        fleet = Fleet(seen, supervisor)
        before = list(fleet.planned)
        possible = ServerCount("reward", 2)
        with pytest.raises(error) as caught:
            await fleet.scaling.scale([possible, wanted] if wanted.role != "reward" else [wanted])
        assert text in str(caught.value)
        assert fleet.planned == before
        assert fleet.running() == []


async def test_a_pool_and_a_named_reward_service(tmp_path: Path) -> None:
    services = {"code": {"data_sources": ["code"]}, "math": {"data_sources": ["*"]}}
    seen = POOLS.with_values({"argosy.reward.services": services})
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        fleet = Fleet(seen, supervisor)
        changes = await fleet.scaling.scale([ServerCount("rollout", 3, "fast"), ServerCount("reward", 2, "code")])
        assert changes == [
            ScaleChange("rollout", "fast", 2, 3, ("rollout-fast-2",)),
            ScaleChange("reward", "code", 1, 2, ("reward-code-1",)),
        ]
        with pytest.raises(InvalidInputError, match="two numbers"):
            await fleet.scaling.scale([ServerCount("reward", 2, "code"), ServerCount("reward", 3, "code")])
