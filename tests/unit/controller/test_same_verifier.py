"""Training and validation judge by the same code: the same answers have the same outcomes in both (cases A5, G9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.controller.stages.reward import RewardStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.validation import validate
from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.pool import PoolOptions
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, Outcome, Prompt, VersionRun

VERSION = PolicyVersion("l0", 0, "00")
ROWS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("openai/gsm8k", "#### 18. Rechecking, \\boxed{21}.", "21", {}),
    ("openai/gsm8k", "#### 18. Rechecking, \\boxed{21}.", "21", {"reward_kwargs": {"method": "strict"}}),
    ("lighteval/MATH", "I first get \\boxed{18}. Rechecking, so \\boxed{21}.", "21", {}),
    ("lighteval/MATH", "I first get \\boxed{18}. Rechecking, so \\boxed{21}.", "18", {}),
    ("math_dapo", "Answer: 18\nAnswer: 21", "21", {}),
    ("argosy/format", "<think>a</think><answer>b</answer>", "", {}),
    ("openai/gsm8k", "#### 21", "see figure 3", {}),
)


@pytest.fixture(scope="module")
def scorers() -> Iterator[RewardScorers]:
    core = RewardScorers(RewardOptions(PoolOptions(worker_count=1)))
    yield core
    core.shutdown()


class Scripted:
    """A rollout that answers with the rows' texts."""

    @property
    def answerer(self) -> Scripted:
        return self

    def of(self, _prompts: Sequence[Prompt]) -> Scripted:
        return self

    async def generate(self, _requests: Sequence[Any], sink: Callable[[Completion], Awaitable[None]]) -> None:
        for completion in completions():
            await sink(completion)


def completions() -> list[Completion]:
    return [
        Completion(SampleId(0, k, 0), (1, 2), (0.0, 0.0), (VersionRun(VERSION, 2),), FinishReason.STOP, text)
        for k, (_, text, _, _) in enumerate(ROWS)
    ]


async def test_train_and_validation_give_the_same_outcomes(scorers: RewardScorers) -> None:
    services = SimpleNamespace(reward=scorers, router=None)
    config = Config().with_values({"argosy.reward.max_error_rate": 1.0})
    ctx = cast(RunContext, SimpleNamespace(config=config, services=services, deadline_s=60.0))
    prompts = [
        Prompt(GroupId(0, k), (1,), source, truth, extra, "Why?") for k, (source, _, truth, extra) in enumerate(ROWS)
    ]
    async with asyncio.TaskGroup() as tasks:
        stage = RewardStage(ctx, prompts, 1, tasks, scorers)
        for completion in completions():
            await stage.add(completion)
    trained: dict[SampleId, Outcome] = stage.outcomes
    held_out = await validate(ctx, cast(RolloutStage, Scripted()), prompts, 0)
    assert len(trained) == len(ROWS)
    assert held_out.outcomes == trained
