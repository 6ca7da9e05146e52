"""Samples that run while their server takes new weights, over real engines: in each way, and when the sync fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sync import publish_and_sync
from argosy.trainer.core import Trainer
from argosy.types.errors import UnavailableError
from argosy.types.records import Completion, TokenRun
from contract.forms import MakeRollout, request
from contract.test_sync_stage import context, make_trainer, train

TOKENS = 600


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.close()


async def begin(stage: RolloutStage, count: int) -> tuple[list[asyncio.Task[Completion]], dict[int, list[int]]]:
    """So many long samples, each with some tokens; and the tokens that have come, by position."""
    seen: dict[int, list[int]] = {position: [] for position in range(count)}

    def on_run(run: TokenRun) -> None:
        have = seen[run.sample_id.position]
        have[run.offset :] = run.token_ids

    asked = [request(position, purpose="val", max_tokens=TOKENS) for position in range(count)]
    tasks = [asyncio.create_task(stage.generate_one(one, on_run=on_run)) for one in asked]
    async with asyncio.timeout(60):
        while not all(seen.values()):  # noqa: ASYNC110 - tokens come from an engine's thread
            await asyncio.sleep(0.005)
    return tasks, seen


def steps(completion: Completion) -> list[int]:
    assert sum(run.token_count for run in completion.versions) == len(completion.token_ids) == TOKENS
    return [run.version.step for run in completion.versions]


@pytest.mark.parametrize(("mode", "wanted"), [("keep", [0, 1]), ("abort", [0, 1]), ("finish", [0])])
async def test_what_runs_goes_on_from_its_tokens(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path, mode: str, wanted: list[int]
) -> None:
    rollouts = {"rollout-0": make_rollout(max_model_len=1024), "rollout-1": make_rollout(max_model_len=1024)}
    trainer = make_trainer(trainers, tiny)
    ctx = context(tmp_path, trainer, rollouts, **{"argosy.weight_sync.while_generating": mode})
    stage = RolloutStage(ctx)
    await publish_and_sync(ctx, stage, 0)
    await train(trainer)
    tasks, seen = await begin(stage, 4)
    before = {position: list(tokens) for position, tokens in seen.items()}
    version = await publish_and_sync(ctx, stage, 1)
    assert [(await core.status()).version for core in rollouts.values()] == [version] * 2
    assert {(await core.status()).state for core in rollouts.values()} == {"ready"}
    for completion in await asyncio.gather(*tasks):
        assert steps(completion) == wanted
        kept = before[completion.sample_id.position]
        assert list(completion.token_ids[: len(kept)]) == kept, "nothing is sampled again"
    assert ctx.counters.get("rollout/resumed_samples", 0) == (4 if mode == "abort" else 0)
    assert "rollout/redispatched_samples" not in ctx.counters


async def test_a_server_whose_sync_fails_is_given_up_and_its_samples_go_on_elsewhere(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = {"rollout-0": make_rollout(max_model_len=1024), "rollout-1": make_rollout(max_model_len=1024)}
    trainer = make_trainer(trainers, tiny)
    ctx = context(tmp_path, trainer, rollouts)
    stage = RolloutStage(ctx)
    await publish_and_sync(ctx, stage, 0)
    await train(trainer)
    tasks, _ = await begin(stage, 4)

    async def finish_weight_update(*_: Any) -> None:
        raise UnavailableError("rollout-1 is lost in the middle of its sync")

    monkeypatch.setattr(rollouts["rollout-1"], "finish_weight_update", finish_weight_update)
    await publish_and_sync(ctx, stage, 1)
    assert stage.usable == {"rollout-0"}
    found = await asyncio.gather(*tasks)
    assert all(steps(completion)[-1] == 1 for completion in found), "what follows is of the new weights"
    assert ctx.counters["rollout/resumed_samples"] == 2
    async with asyncio.timeout(60):
        while (await rollouts["rollout-1"].status()).running_count:  # noqa: ASYNC110 - only its status tells
            await asyncio.sleep(0.01)
