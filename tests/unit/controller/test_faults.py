"""What the loop does when a server is away for a moment, a core dies in process, or another leader has moved on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger
from argosy.controller.placement import _unless_failed
from argosy.controller.recovery import LATEST_KEY, publish_latest
from argosy.controller.stages import rollout as stage
from argosy.controller.stages import single
from argosy.controller.stages.prompt import make_requests
from argosy.membership.memory import MemoryMembership
from argosy.types.errors import FencedError, StateError, UnavailableError
from argosy.types.ids import GroupId, PolicyVersion
from argosy.types.records import (
    Completion,
    FinishReason,
    GenerateRequest,
    Mutation,
    Prompt,
    RolloutStatus,
    SamplingParams,
)

CURRENT, OLD = PolicyVersion("l0", 3, "aa"), PolicyVersion("l0", 2, "bb")


class Blinking:
    """A server that is cut off during its first call and then back with `version`."""

    def __init__(self, version: PolicyVersion) -> None:
        self.version = version
        self.calls = 0

    async def generate(self, requests: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        self.calls += 1
        for request in requests:
            if self.calls == 1:
                raise UnavailableError("connection lost")
            yield Completion(request.sample_id, (1,), (-0.1,), (), FinishReason.STOP, purpose="val")

    async def status(self) -> RolloutStatus:
        return RolloutStatus(self.version, "ready", 0, 0, 4, 0, 0, 64)


def context(
    tmp_path: Path,
    server: Blinking,
    membership: MemoryMembership,
    term: int = 1,
    *,
    other: Blinking | None = None,
    colocated: bool = False,
) -> RunContext:
    rollouts = {"rollout-0": server} | ({} if other is None else {"rollout-1": other})
    services = Services(cast(Any, rollouts), cast(Any, None), cast(Any, None), None)
    config = Config().with_values({"argosy.colocated": colocated})
    return RunContext(config, "run", term, services, Ledger(tmp_path / "ledger", term), membership)


@pytest.mark.parametrize(("version", "comes_back"), [(CURRENT, True), (OLD, False)])
async def test_a_server_comes_back_only_with_the_current_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: PolicyVersion, comes_back: bool
) -> None:
    monkeypatch.setattr(stage, "ROUND_PAUSE_S", 0.0)
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.0)
    rollout = stage.RolloutStage(context(tmp_path, Blinking(version), MemoryMembership()))
    rollout.version = CURRENT
    answered: list[Completion] = []

    async def sink(completion: Completion) -> None:
        answered.append(completion)

    requests = make_requests([Prompt(GroupId(0, 0), (1,), "s", "1")], 2, SamplingParams(max_tokens=4), "val")
    if comes_back:
        await rollout.generate(requests, sink)
        assert len(answered) == 2
    else:
        with pytest.raises(UnavailableError, match="2 of 2 samples"):
            await rollout.generate(requests, sink)
        assert answered == []


class Refusing(Blinking):
    """Turns requests away as long as its state isn't "ready", and takes weights all the while."""

    def __init__(self, state: str) -> None:
        super().__init__(CURRENT)
        self.state = state
        self.calls = 1

    async def generate(self, requests: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        if self.state != "ready":
            self.calls += 1
            raise StateError(f"this rollout server is {self.state}", state=self.state)
        async for completion in super().generate(requests, deadline_s=deadline_s):
            yield completion

    async def status(self) -> RolloutStatus:
        return replace(await super().status(), state=self.state)


@pytest.mark.parametrize("state", ["draining", "stale"])
async def test_a_server_that_takes_no_samples_is_left_out_until_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(stage, "ROUND_PAUSE_S", 0.0)
    refusing, well = Refusing(state), Refusing("ready")
    rollout = stage.RolloutStage(context(tmp_path, refusing, MemoryMembership(), other=well))
    rollout.version = CURRENT
    answered: list[Completion] = []

    async def sink(completion: Completion) -> None:
        answered.append(completion)

    async def generate() -> int:
        before = len(answered)
        prompts = [Prompt(GroupId(0, place), (1,), "s", "1") for place in range(4)]
        await rollout.generate(make_requests(prompts, 2, SamplingParams(max_tokens=4), "val"), sink)
        return len(answered) - before

    assert await generate() == 8
    assert rollout.usable == {"rollout-1"}
    assert rollout._ctx.counters["rollout/redispatched_samples"] == 4
    await rollout.synced(["rollout-0", "rollout-1"], CURRENT)
    assert rollout.usable == {"rollout-1"}, "it took the weights, and takes no samples all the same"
    asked = refusing.calls
    assert await generate() == 8
    assert refusing.calls == asked
    refusing.state = "ready"
    await rollout.synced(["rollout-0", "rollout-1"], CURRENT)
    assert rollout.usable == {"rollout-0", "rollout-1"}
    assert await generate() == 8


async def test_a_server_that_can_not_sleep_now_is_not_the_end_of_the_run(tmp_path: Path) -> None:
    rollout = stage.RolloutStage(context(tmp_path, Busy(CURRENT), MemoryMembership(), colocated=True))
    await rollout.check_sleep()
    await rollout.sleep(1)
    assert rollout.usable == set()


class Busy(Blinking):
    async def status(self) -> RolloutStatus:
        raise StateError("the engine has not been started", state="joining")

    async def sleep(self, level: int, ctx: Mutation) -> None:
        raise StateError("2 samples are in flight", state="ready")


async def test_a_dead_core_ends_the_work_in_process() -> None:
    async def dies() -> BaseException:
        return RuntimeError("the engine's thread is gone")

    with pytest.raises(RuntimeError, match="thread is gone"):
        await asyncio.wait_for(_unless_failed(asyncio.sleep(60), [dies()]), 10)


async def test_latest_checkpoint_is_moved_under_the_term_only(tmp_path: Path) -> None:
    membership = MemoryMembership()
    first = await membership.elect("run", candidate="a")
    await publish_latest(context(tmp_path, Blinking(CURRENT), membership, first.term), "global_step_1")
    await first.resign()
    second = await membership.elect("run", candidate="b")
    await publish_latest(context(tmp_path, Blinking(CURRENT), membership, second.term), "global_step_2")
    with pytest.raises(FencedError):
        await publish_latest(context(tmp_path, Blinking(CURRENT), membership, first.term), "global_step_9")
    found = await membership.get_state("run", LATEST_KEY)
    assert found is not None
    assert found.value == "global_step_2"


async def test_f6_a_checkpoint_counts_while_membership_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    membership = MemoryMembership()
    term = (await membership.elect("run", candidate="a")).term
    ctx = context(tmp_path, Blinking(CURRENT), membership, term)

    async def away(*_: object, **__: object) -> None:
        raise UnavailableError("etcd doesn't answer")

    for method in ("get_state", "compare_and_swap"):
        with monkeypatch.context() as patch:
            patch.setattr(membership, method, away)
            await publish_latest(ctx, "global_step_1")
    assert caplog.text.count("global_step_1 is complete, but membership can't be told") == 2
    await publish_latest(ctx, "global_step_2")
    found = await membership.get_state("run", LATEST_KEY)
    assert found is not None
    assert found.value == "global_step_2"
