"""What the loop does when a server is away for a moment, a core dies in process, or another leader has moved on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger
from argosy.controller.placement import _unless_failed
from argosy.controller.recovery import LATEST_KEY, publish_latest
from argosy.controller.stages import rollout as stage
from argosy.controller.stages.prompt import make_requests
from argosy.membership.memory import MemoryMembership
from argosy.types.errors import FencedError, UnavailableError
from argosy.types.ids import GroupId, PolicyVersion
from argosy.types.records import Completion, FinishReason, GenerateRequest, Prompt, RolloutStatus, SamplingParams

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


def context(tmp_path: Path, server: Blinking, membership: MemoryMembership, term: int = 1) -> RunContext:
    services = Services({"rollout-0": cast(Any, server)}, cast(Any, None), cast(Any, None), None)
    return RunContext(Config(), "run", term, services, Ledger(tmp_path / "ledger", term), membership)


@pytest.mark.parametrize(("version", "comes_back"), [(CURRENT, True), (OLD, False)])
async def test_a_server_comes_back_only_with_the_current_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: PolicyVersion, comes_back: bool
) -> None:
    monkeypatch.setattr(stage, "ROUND_PAUSE_S", 0.0)
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
