"""`argosy.restart.*`: how often a dead service is started again, and as what."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from argosy.config import Config, load_resolved
from argosy.controller.console import RunConsole
from argosy.controller.control import RunControl
from argosy.controller.launch import SetbackError
from argosy.controller.launch import fleet as fleet_module
from argosy.controller.launch.children import ServiceChildren
from argosy.controller.launch.fleet import LocalFleet
from argosy.controller.launch.plan import plan_member
from argosy.controller.launch.restarts import RestartPolicy
from argosy.controller.recovery import Checkpoint
from argosy.controller.setbacks import Setbacks
from argosy.membership.etcd_client import EtcdOptions
from argosy.membership.memory import MemoryMembership
from argosy.types.errors import ArgosyError
from argosy.types.records import Member
from unit.config.effects.support import problems


async def test_limit(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the supervisor is told, as soon as somebody can go back."""
    seen: list[RestartPolicy] = []

    class Supervisor:
        def __init__(self, *_: object, **__: object) -> None:
            self.failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.setback: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def allow_restarts(self, policy: RestartPolicy, renew: object) -> None:
            seen.append(policy)

    monkeypatch.setattr(fleet_module, "Supervisor", Supervisor)

    async def nothing() -> None:
        return None

    for changed in (job, job.with_values({"argosy.restart.limit": 7})):
        fleet = LocalFleet(changed, job.run_folder)
        fleet._supervisor = Supervisor()  # type: ignore[assignment]
        await fleet.race(nothing())
        await fleet.race(nothing(), setbacks=True)
    assert [policy.limit for policy in seen] == [3, 7]
    assert "argosy.restart.limit" in problems(job.with_values({"argosy.restart.limit": -1}))


def test_ranks(job: Config) -> None:
    """The configuration that a trainer reads when it is started again; a first start and other roles know nothing."""
    changed = job.with_values({"trainer.n_gpus_per_node": 2, "argosy.restart.ranks": 1})
    children = ServiceChildren(changed, changed.run_folder, {})
    changed.run_folder.mkdir(parents=True)
    children.save_settings(EtcdOptions(("127.0.0.1:1",)))

    def ranks(role: str, *, again: bool) -> int:
        argv = children.spec(plan_member(changed, role, "default", 0), again=again).argv
        return load_resolved(argv[argv.index("--config") + 1]).trainer.n_gpus_per_node

    assert [ranks("trainer", again=again) for again in (False, True)] == [2, 1]
    assert [ranks("critic", again=again) for again in (False, True)] == [2, 1]
    assert ranks("rollout", again=True) == 2
    assert "argosy.restart.ranks" in problems(job.with_values({"argosy.restart.ranks": 0}))
    assert problems(changed) == ""
    indivisible = {"argosy.trainer.tensor_parallel_size": 2, "trainer.n_gpus_per_node": 2, "argosy.restart.ranks": 1}
    assert "can't be started again" in problems(job.with_values(indivisible))
    fixed = {"argosy.deterministic": True, "argosy.restart.ranks": 2}
    assert "round otherwise" in problems(job.with_values(fixed))


async def test_weights(job: Config, tmp_path: Path) -> None:
    """A setback of the trainer asks rollout servers for newer weights; here is none, which is told and passed over."""
    asked: list[str] = []

    class Membership(MemoryMembership):
        async def members(self, role: str | None = None) -> tuple[Member, ...]:
            asked.append(role or "")
            return await super().members(role)

    for place, asks in (("checkpoint", []), ("rollout", ["rollout"])):
        prepared: Any = SimpleNamespace(
            checkpoint=Checkpoint(tmp_path, 4, "run"), run_dir=tmp_path, reopen=lambda _: None,
            config=job.with_values({"argosy.restart.weights": place}),
        )  # fmt: skip
        watchers: Any = SimpleNamespace(
            observer=SimpleNamespace(last_checkpoint=None),
            control=RunControl(),
            screen=RunConsole(9, Console(quiet=True)),
        )
        setbacks = Setbacks(prepared, 3)
        await setbacks.note(SetbackError("trainer-0", "died", ArgosyError("of something")), watchers)
        setbacks.last_state = {"step": 7, "lineage": "l0"}
        await setbacks.take_newer_weights(Membership(), watchers)
        assert asked == asks
        assert setbacks.cause == "trainer-0 died", "from the checkpoint"
    assert "argosy.restart.weights" in problems(job.with_values({"argosy.restart.weights": "disk"}))
    wanted = job.with_values({"argosy.restart.weights": "rollout"})
    assert problems(wanted) == ""
    for key, value in (
        ("argosy.deterministic", True), ("argosy.max_staleness", 1), ("algorithm.adv_estimator", "gae"),
        ("actor_rollout_ref.model.lora_rank", 4),
    ):  # fmt: skip
        assert "argosy.restart.weights: got rollout with" in problems(wanted.with_values({key: value})), key
