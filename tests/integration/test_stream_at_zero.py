"""argosy.max_staleness=0 is synchronous training, bit for bit: what a plain loop over the same services gives.

The plain loop below is draw, generate, score, advantage, update, sync, straight from the roles, one after the other. It
shares no producer, stream, stage or ledger with `argosy train`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.cli.main import main
from argosy.config import Config, load
from argosy.controller import loop
from argosy.controller.context import RunContext, Services
from argosy.controller.data.prompts import load_prompts
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.placement import open_placement
from argosy.controller.producing import StepProducer
from argosy.controller.stages.generation import OnStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stream import GroupStream
from argosy.controller.stream_build import build_source
from argosy.trainer.core import Trainer
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import (
    Completion,
    FinishReason,
    GenerateRequest,
    LossConfig,
    Mutation,
    Prompt,
    SamplingParams,
    Scored,
    ScoreRequest,
    UpdateConfig,
)
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("async")

STEPS, BATCH, N = 4, 8, 8
DEADLINE_S = 120.0
WORDS = (
    "argosy.placement=inprocess", "argosy.max_staleness=0", f"trainer.total_training_steps={STEPS}",
    "data.shuffle=false", "trainer.val_before_train=False", "trainer.logger=[file]", "argosy.export_hf=false",
    # More than one optimizer step a batch, so that old log-probs come from a pass of their own.
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_epochs=2",
)  # fmt: skip


@dataclass
class Trained:
    """What a trainer was given, and what became of its weights."""

    batches: list[dict[str, list[Any]]] = field(default_factory=list)
    """Columns of each step's batch."""
    configs: list[UpdateConfig] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    """Of the weights before the first step and after each."""

    def tokens(self) -> list[dict[str, Any]]:
        """Of each step: sample → its tokens."""
        return [dict(zip(batch["sample_id"], batch["response_ids"], strict=True)) for batch in self.batches]


def watch(patch: pytest.MonkeyPatch) -> Trained:
    """Note what any trainer core is told from now on."""
    seen = Trained()
    update, publish = Trainer.update, Trainer.publish_weights

    async def noting_update(self: Trainer, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> Any:
        seen.batches.append(batch.table.to_pydict())
        seen.configs.append(config)
        return await update(self, batch, config, ctx)

    async def noting_publish(self: Trainer, *arguments: Any, **more: Any) -> Any:
        manifest = await publish(self, *arguments, **more)
        seen.digests.append(manifest.version.digest)
        return manifest

    patch.setattr(Trainer, "update", noting_update)
    patch.setattr(Trainer, "publish_weights", noting_publish)
    return seen


class PlainLoop:
    """Synchronous training in a few lines."""

    def __init__(self, config: Config, services: Services) -> None:
        [self.rollout] = services.rollouts.values()
        assert services.reference is not None
        self.services, self.reference = services, services.reference
        self.prompts: Sequence[Prompt] = list(load_prompts(config, "train", progress=False).in_order())
        self.params = SamplingParams(max_tokens=8, seed=config.argosy.seed)
        self.calls = 0

    async def train(self) -> None:
        await self.sync(0)
        for step in range(1, STEPS + 1):
            batch = await self.draw(range(BATCH * (step - 1), BATCH * step))
            batch = await self.with_log_probs(batch)
            loss = LossConfig(use_kl_loss=True, kl_loss_coef=0.001, loss_scale_factor=8.0)
            await self.services.policy.update(batch, UpdateConfig(loss, 4 * N, ppo_epochs=2), self.mutation(step - 1))
            await self.sync(step)

    async def draw(self, places: Sequence[int]) -> TrajectoryBatch:
        """Sampled, scored, and with advantages."""
        requests = [
            GenerateRequest(SampleId(0, place, k), self.prompts[place].token_ids, self.params)
            for place in places
            for k in range(N)
        ]
        answers: dict[SampleId, Completion] = {}
        async for completion in self.rollout.generate(requests, deadline_s=DEADLINE_S):
            answers[completion.sample_id] = completion
        rewards = await self.rewards(answers)
        advantages: dict[SampleId, float] = {}
        for place in places:
            group = [SampleId(0, place, k) for k in range(N)]
            values = np.array([rewards[sample] for sample in group])
            scaled = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
            advantages |= dict(zip(group, scaled, strict=True))
        order = [request.sample_id for request in requests]
        rows = [answers[sample].token_ids for sample in order]
        spread = [[advantages[sample]] * len(row) for sample, row in zip(order, rows, strict=True)]
        return TrajectoryBatch.build(
            order,
            [request.prompt_ids for request in requests],
            rows,
            rollout_log_probs=Ragged.from_rows([answers[sample].log_probs for sample in order], np.float32),
            advantages=Ragged.from_rows(spread, np.float32),
        )

    async def rewards(self, answers: Mapping[SampleId, Completion]) -> dict[SampleId, float]:
        items = []
        for sample, row in sorted(answers.items()):
            prompt, whole = self.prompts[sample.position], row.finish_reason is not FinishReason.LENGTH
            items.append(
                ScoreRequest(
                    sample, prompt.data_source, prompt.text, row.text, prompt.ground_truth, prompt.extra_info,
                    prompt.token_ids, row.token_ids, whole,
                )
            )  # fmt: skip
        found = {}
        for result in await self.services.reward.score(items, deadline_s=DEADLINE_S):
            assert isinstance(result.outcome, Scored)
            found[result.sample_id] = float(np.float32(result.outcome.score))  # as rewards of tokens are kept
        return found

    async def with_log_probs(self, batch: TrajectoryBatch) -> TrajectoryBatch:
        for name, model in (("old_log_probs", self.services.policy), ("ref_log_probs", self.reference)):
            answer = await model.compute_log_probs(batch, ["log_probs"], temperature=1.0, deadline_s=DEADLINE_S)
            assert answer.sample_ids == batch.sample_ids
            batch = batch.with_column(name, answer.ragged("log_probs"))
        return batch

    async def sync(self, step: int) -> None:
        manifest = await self.services.policy.publish_weights("plain", step, self.mutation(step))
        await self.rollout.init_weight_transfer("stream", self.mutation())
        await self.rollout.start_weight_update(f"plain-{step}", manifest, self.mutation())
        await self.rollout.update_weights(f"plain-{step}", self.services.policy.weight_source(), self.mutation())
        assert await self.rollout.finish_weight_update(f"plain-{step}", self.mutation()) == manifest.version

    def mutation(self, expected_step: int | None = None) -> Mutation:
        self.calls += 1
        return Mutation("plain", 1, f"plain/{self.calls}", DEADLINE_S, expected_step)


def arguments(job: ToyJob, run: str) -> list[str]:
    words = job.command(run, *WORDS)
    return words[words.index("train") :]


@pytest.fixture(scope="module")
def reference(toy_job: ToyJob) -> Trained:
    """What the plain loop trains on, and makes."""
    config = load(arguments(toy_job, "plain")[1:])

    async def work() -> None:
        async with open_placement(config, config.run_folder) as placement:
            await placement.race(PlainLoop(config, placement.services).train())

    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch)
        asyncio.run(work())
    assert len(seen.batches) == STEPS
    assert len(set(seen.digests)) == STEPS + 1, "each step changes the weights"
    return seen


def test_without_staleness_a_run_is_the_plain_loop_bit_for_bit(
    toy_job: ToyJob, reference: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)
    assert main(arguments(toy_job, "synchronous")) == 0
    assert seen.tokens() == reference.tokens()
    assert seen.batches == reference.batches, "advantages and log-probs too"
    assert seen.configs == reference.configs
    assert seen.digests == reference.digests


def stream_always(
    ctx: RunContext, sampler: PromptSampler, rollout: RolloutStage, on_stage: OnStage, total_steps: int
) -> StepProducer:
    """The stream, though the configuration asks for whole batches."""
    return GroupStream(ctx, build_source(ctx, sampler, rollout), rollout, on_stage, total_steps, 10**9)


def test_the_stream_without_staleness_trains_the_same(
    toy_job: ToyJob, reference: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are asked for one by one, so who shares a batch of the engine is another: its log-probs may differ in
    their last bits, which nothing is trained from where nothing is stale. All else is the same, and so are the
    weights."""
    made: list[Path] = []
    real = GroupStream.synced

    def synced(self: GroupStream, step: int) -> None:
        made.append(self._ctx.config.run_folder)
        real(self, step)

    monkeypatch.setattr(GroupStream, "synced", synced)
    monkeypatch.setattr(loop, "build_producer", stream_always)
    seen = watch(monkeypatch)
    assert main(arguments(toy_job, "streamed")) == 0
    assert len(made) == STEPS + 1, "it was a stream"
    assert seen.tokens() == reference.tokens()
    for ours, theirs in zip(seen.batches, reference.batches, strict=True):
        own, other = ours.pop("rollout_log_probs"), theirs["rollout_log_probs"]
        assert ours == {name: column for name, column in theirs.items() if name != "rollout_log_probs"}
        for row, wanted in zip(own, other, strict=True):
            assert row == pytest.approx(wanted, abs=1e-5)
    assert seen.digests == reference.digests
