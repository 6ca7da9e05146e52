"""The first half of the loop: generation batches become steps.

With dynamic sampling a step takes several of them (stages/filtering.py); with an estimator that needs a baseline, each
prompt has a greedy answer beside the sampled ones, which is scored and never trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.rewards.failures import check_failures
from argosy.controller.stages.filtering import GroupFilter, NoFullBatchError
from argosy.controller.stages.generation import GenerationBatch, GenerationStage, OnStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.shaping import reward_of
from argosy.telemetry.traces import span, traceparent
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, Outcome, Prompt

__all__ = ["NoMoreSteps", "Produced", "Producer", "StepRecord"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step was made of, for dumps and for people."""

    step: int
    prompts: Sequence[Prompt]
    completions: Mapping[SampleId, Completion]
    outcomes: Mapping[SampleId, Outcome]
    version: PolicyVersion | None = None
    baselines: Mapping[GroupId, float] = field(default_factory=dict)
    """Rewards of the greedy answers, NaN where nobody could judge one; empty where the estimator needs none."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A generated and scored step on its way to the trainer."""

    record: StepRecord
    sampler_state: Mapping[str, Any]
    """Of the data order after this step's last draw: what a checkpoint of this step saves."""
    reward_state: Mapping[str, Any]
    """Of the reward services' running figures with this step in them; saved with it too."""
    timing: dict[str, float]
    started: float
    trace: str
    """Of the span that produced it: training goes on in the same trace."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NoMoreSteps:
    """Nothing can be produced any more: what is done is kept, and the run ends."""

    reason: str
    error: NoFullBatchError | None = None
    """None: a clean end, since the data is used up."""


@dataclass(slots=True)
class _Step:
    """A step that is being collected."""

    groups: GroupFilter
    version: PolicyVersion | None
    started: float
    completions: dict[SampleId, Completion] = field(default_factory=dict)
    """Of kept groups, greedy answers among them."""
    outcomes: dict[SampleId, Outcome] = field(default_factory=dict)
    """Of all groups, for the failure rate."""
    timing: dict[str, float] = field(default_factory=lambda: {"gen": 0.0, "reward": 0.0})
    token_count: int = 0
    overlong_count: int = 0
    """Samples whose prompts left no room for an answer."""


class Producer:
    """Makes the steps of a run, one after the other."""

    def __init__(self, ctx: RunContext, sampler: PromptSampler, rollout: RolloutStage, on_stage: OnStage) -> None:
        self._ctx = ctx
        self._sampler = sampler
        self._rollout = rollout
        self._generation = GenerationStage(ctx, rollout, on_stage)
        trainer, filtering = ctx.config.trainer, ctx.config.algorithm.filter_groups
        bounded = filtering.enable and not trainer.total_training_steps
        self._data_epochs = trainer.total_epochs if bounded else None
        self._limit = batch_limit(filtering.max_num_gen_batches, sampler, ctx.config.data.train_batch_size)

    async def produce(self, step: int) -> Produced | NoMoreSteps:
        """Draw, generate and score one step. Raises RewardsUnusableError."""
        made = _Step(GroupFilter(self._ctx.config), self._rollout.version, time.perf_counter())
        with span("step.produce", step=step):
            trace = traceparent()
            while not made.groups.full:
                if self._data_epochs is not None and self._sampler.data_epoch >= self._data_epochs:
                    return self._end_of_data(step, made)
                self._take(made, await self._generation.generate(step, self._sampler.next_batch()))
                if not made.groups.full and made.groups.batch_count >= self._limit:
                    error = made.groups.not_full(step)
                    return NoMoreSteps(error.message, error)
        return self._produced(step, made, trace)

    def _take(self, made: _Step, batch: GenerationBatch) -> None:
        """Keep what is trained of a generation batch, and enter what becomes of the rest."""
        n = self._ctx.config.actor_rollout_ref.rollout.n
        sampled = {sample: row for sample, row in batch.completions.items() if sample.k < n}
        dropped = made.groups.add(batch.prompts, sampled, batch.outcomes)
        for sample, completion in batch.completions.items():
            made.token_count += len(completion.token_ids)
            made.overlong_count += completion.overlong_prompt
            if sample.group not in dropped:
                made.completions[sample] = completion
        for reason in set(dropped.values()):
            lost = [sample for sample in sorted(batch.completions) if dropped.get(sample.group) == reason]
            self._ctx.ledger.dropped(lost, f"dynamic sampling: {reason}")
        made.outcomes |= batch.outcomes
        made.timing["gen"] += batch.generate_s
        made.timing["reward"] += batch.score_s

    def _produced(self, step: int, made: _Step, trace: str) -> Produced:
        config, n = self._ctx.config, self._ctx.config.actor_rollout_ref.rollout.n
        metrics = check_failures(made.outcomes, config.argosy.reward.max_error_rate) | made.groups.metrics()
        metrics["rollout/generated_tokens"] = float(made.token_count)
        metrics |= self._rollout.metrics() | self._generation.metrics()
        metrics["rollout/overlong_prompts"] = float(made.overlong_count)
        sampled = {sample: row for sample, row in made.completions.items() if sample.k < n}
        greedy = {sample: row for sample, row in made.completions.items() if sample.k >= n}
        baselines = {
            sample.group: reward_of(config, made.outcomes[sample], len(row.token_ids), row.turn_rewards)
            for sample, row in greedy.items()
        }
        if greedy:
            self._ctx.ledger.baseline(sorted(greedy))
            metrics["rollout/greedy_answers"] = float(len(greedy))
        outcomes = {sample: made.outcomes[sample] for sample in sampled}
        record = StepRecord(step, made.groups.kept, sampled, outcomes, made.version, baselines)
        if self._ctx.services.router is not None:
            metrics |= self._ctx.services.router.commit()
        return Produced(record, self._sampler.state(), self.reward_state(), made.timing, made.started, trace, metrics)

    def reward_state(self) -> dict[str, Any]:
        """Running figures of the reward services, for a checkpoint."""
        router = self._ctx.services.router
        scores = {} if router is None else router.state()
        return {"scores": scores, "failures": self._generation.failures.state()}

    def restore_rewards(self, state: Mapping[str, Any]) -> None:
        """Go on from what `reward_state` gave; from nothing if the checkpoint has none."""
        if self._ctx.services.router is not None:
            self._ctx.services.router.restore(state.get("scores", {}))
        self._generation.failures.restore(state.get("failures", {}))

    def _end_of_data(self, step: int, made: _Step) -> NoMoreSteps:
        self._ctx.ledger.dropped(sorted(made.completions), "the data ended before the step was full")
        return NoMoreSteps(
            f"the data of trainer.total_epochs={self._ctx.config.trainer.total_epochs} is used up before "
            f"step {step} is full ({made.groups.counts()})"
        )


def batch_limit(wanted: int, sampler: PromptSampler, train_batch_size: int) -> int:
    """Generation batches that one step may take: `wanted`, or a data epoch's beyond what a batch takes (0 and -1)."""
    if wanted > 0:
        return wanted
    return sampler.steps_per_epoch + -(-train_batch_size // sampler.batch_size)
