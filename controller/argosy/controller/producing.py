"""The first half of the loop: generation batches become steps.

With dynamic sampling a step takes several of them (stages/filtering.py); with an estimator that needs a baseline, each
prompt has a greedy answer beside the sampled ones, which is scored and never trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from argosy.algorithms.catalog import estimator_needs
from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.rewards.failures import check_failures
from argosy.controller.stages.filtering import GroupFilter, NoFullBatchError
from argosy.controller.stages.generation import GenerationBatch, GenerationStage, OnStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.shaping import reward_of
from argosy.controller.staleness import staleness_metrics
from argosy.telemetry.traces import span, traceparent
from argosy.types.errors import ConfigError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, Outcome, Prompt

__all__ = [
    "DATA_OVER",
    "NoMoreSteps",
    "Produced",
    "Producer",
    "StepParts",
    "StepProducer",
    "StepRecord",
    "end_of_data",
    "finish_step",
]

DATA_OVER = "the data ended before the step was full"
"""Why samples of a step that never was are dropped."""


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
class StepParts:
    """A step that is being collected."""

    config: Config
    groups: GroupFilter
    version: PolicyVersion | None = None
    started: float = 0.0
    completions: dict[SampleId, Completion] = field(default_factory=dict)
    """Of kept groups, greedy answers among them."""
    outcomes: dict[SampleId, Outcome] = field(default_factory=dict)
    """Of all groups, for the failure rate."""
    timing: dict[str, float] = field(default_factory=dict)
    token_count: int = 0
    overlong_count: int = 0
    """Samples whose prompts left no room for an answer."""

    def add(self, completions: Mapping[SampleId, Completion], outcomes: Mapping[SampleId, Outcome]) -> None:
        """Count what came of some groups, kept or not."""
        self.token_count += sum(len(completion.token_ids) for completion in completions.values())
        self.overlong_count += sum(completion.overlong_prompt for completion in completions.values())
        self.outcomes |= outcomes

    def sampled(self, completions: Mapping[SampleId, Completion]) -> dict[SampleId, Completion]:
        """Without the greedy answers, where the estimator needs them."""
        if "baseline" not in estimator_needs(self.config.algorithm.adv_estimator):
            return dict(completions)
        n = self.config.actor_rollout_ref.rollout.n
        return {sample: completion for sample, completion in completions.items() if sample.k < n}


class StepProducer(Protocol):
    """Makes the steps of a run, one after the other: whole generation batches at once (`Producer`), or out of a stream
    of groups (`argosy.controller.stream.GroupStream`)."""

    async def run(self) -> None:
        """Work beside the trainer, if it does any; cancelled when training ends."""
        ...

    def synced(self, step: int) -> None:
        """The weights of `step` are on the rollout servers."""
        ...

    async def produce(self, step: int) -> Produced | NoMoreSteps:
        """Everything of one step. Raises RewardsUnusableError."""
        ...

    def open_groups(self) -> frozenset[GroupId]:
        """Drawn, and neither dropped nor given out."""
        ...

    def sampler_state(self) -> Mapping[str, Any]:
        """Where the data order is now."""
        ...

    def reward_state(self) -> dict[str, Any]:
        """Running figures of the reward services, for a checkpoint."""
        ...

    def restore_rewards(self, state: Mapping[str, Any]) -> None:
        """Go on from what `reward_state` gave; from nothing if the checkpoint has none."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What is under way between two steps, as JSON values; empty where nothing ever is."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with what was under way, before `run` and `synced`."""
        ...


class Producer:
    """Makes each step by itself: nothing is under way between two of them."""

    def __init__(self, ctx: RunContext, sampler: PromptSampler, rollout: RolloutStage, on_stage: OnStage) -> None:
        self._ctx = ctx
        self._sampler = sampler
        self._rollout = rollout
        self._generation = GenerationStage(ctx, rollout, on_stage)
        self._data_epochs = last_data_epoch(ctx.config)
        limit = ctx.config.algorithm.filter_groups.max_num_gen_batches
        self._limit = batch_limit(limit, sampler, ctx.config.data.train_batch_size)

    async def run(self) -> None:
        """Nothing goes on beside the trainer."""

    def synced(self, step: int) -> None:
        """Steps are asked for one by one."""

    def open_groups(self) -> frozenset[GroupId]:
        """None, between two steps."""
        return frozenset()

    def sampler_state(self) -> Mapping[str, Any]:
        """Of the data order."""
        return self._sampler.state()

    def state(self) -> Mapping[str, Any]:
        """Nothing, between two steps."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing of that is asked for. Raises ConfigError if the checkpoint's run had groups under way."""
        count = len(state.get("finished", ())) + len(state.get("source", {}).get("groups", ()))
        if count:
            raise ConfigError(
                f"the checkpoint has {count} groups under way, which a run with argosy.max_staleness=0 can't take up: "
                "go on with the setting that it was made with"
            )

    async def produce(self, step: int) -> Produced | NoMoreSteps:
        """Draw, generate and score one step. Raises RewardsUnusableError."""
        config = self._ctx.config
        made = StepParts(config, GroupFilter(config), self._rollout.version, time.perf_counter())
        made.timing = {"gen": 0.0, "reward": 0.0}
        with span("step.produce", step=step):
            trace = traceparent()
            while not made.groups.full:
                if self._data_epochs is not None and self._sampler.data_epoch >= self._data_epochs:
                    return self._end_of_data(step, made)
                self._take(made, await self._generation.generate(step, self._sampler.next_batch()))
                if not made.groups.full and made.groups.batch_count >= self._limit:
                    error = made.groups.not_full(step)
                    return NoMoreSteps(error.message, error)
        return finish_step(self._ctx, step, made, trace, self, self._rollout.metrics() | self._generation.metrics())

    def _take(self, made: StepParts, batch: GenerationBatch) -> None:
        """Keep what is trained of a generation batch, and enter what becomes of the rest."""
        dropped = made.groups.add(batch.prompts, made.sampled(batch.completions), batch.outcomes)
        made.add(batch.completions, batch.outcomes)
        made.completions |= {s: row for s, row in batch.completions.items() if s.group not in dropped}
        for reason in set(dropped.values()):
            lost = [sample for sample in sorted(batch.completions) if dropped.get(sample.group) == reason]
            self._ctx.ledger.dropped(lost, f"dynamic sampling: {reason}")
        made.timing["gen"] += batch.generate_s
        made.timing["reward"] += batch.score_s

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

    def _end_of_data(self, step: int, made: StepParts) -> NoMoreSteps:
        self._ctx.ledger.dropped(sorted(made.completions), DATA_OVER)
        return end_of_data(self._ctx.config, step, made.groups)


def end_of_data(config: Config, step: int, groups: GroupFilter) -> NoMoreSteps:
    """The data ended before a step was full: a clean end, unless there is no step before it (case C10)."""
    reason = (
        f"the data of trainer.total_epochs={config.trainer.total_epochs} is used up before step {step} is full "
        f"({groups.counts()})"
    )
    if step > 1:
        return NoMoreSteps(reason)
    return NoMoreSteps(
        reason,
        NoFullBatchError(
            f"{reason}: nothing was trained. The prompts may be too easy or too hard: look at the scores, or raise "
            "trainer.total_epochs or actor_rollout_ref.rollout.n"
        ),
    )


def finish_step(
    ctx: RunContext, step: int, made: StepParts, trace: str, producer: StepProducer, metrics: Mapping[str, float]
) -> Produced:
    """A whole step: greedy answers become baselines, and running figures move on. Raises RewardsUnusableError."""
    found = check_failures(made.outcomes, ctx.config.argosy.reward.max_error_rate) | made.groups.metrics()
    found["rollout/generated_tokens"] = float(made.token_count)
    found |= metrics
    found["rollout/overlong_prompts"] = float(made.overlong_count)
    sampled = made.sampled(made.completions)
    found |= staleness_metrics(step, sampled)
    greedy = {sample: row for sample, row in made.completions.items() if sample not in sampled}
    baselines = {
        sample.group: reward_of(ctx.config, made.outcomes[sample], len(row.token_ids), row.turn_rewards)
        for sample, row in greedy.items()
    }
    if greedy:
        ctx.ledger.baseline(sorted(greedy))
        found["rollout/greedy_answers"] = float(len(greedy))
    outcomes = {sample: made.outcomes[sample] for sample in sampled}
    record = StepRecord(step, made.groups.kept, sampled, outcomes, made.version, baselines)
    if ctx.services.router is not None:
        found |= ctx.services.router.commit()
    places = (producer.sampler_state(), producer.reward_state())
    return Produced(record, *places, made.timing, made.started, trace, found)


def last_data_epoch(config: Config) -> int | None:
    """The data epoch before which the data ends; None where the number of steps alone ends the run."""
    trainer = config.trainer
    bounded = config.algorithm.filter_groups.enable and not trainer.total_training_steps
    return trainer.total_epochs if bounded else None


def batch_limit(wanted: int, sampler: PromptSampler, train_batch_size: int) -> int:
    """Generation batches that one step may take: `wanted`, or a data epoch's beyond what a batch takes (0 and -1)."""
    if wanted > 0:
        return wanted
    return sampler.steps_per_epoch + -(-train_batch_size // sampler.batch_size)
