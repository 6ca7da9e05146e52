"""The first half of the loop: draw prompts, generate, score; what is whole goes on to training."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.stages.prompt import make_requests, training_params
from argosy.controller.stages.reward import RewardStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.telemetry.traces import span, traceparent
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Completion, Outcome, Prompt

OnStage = Callable[[int, str], None]
"""Told (step, stage name) when the loop begins to wait for a stage."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step was made of, for dumps and for people."""

    step: int
    prompts: Sequence[Prompt]
    completions: Mapping[SampleId, Completion]
    outcomes: Mapping[SampleId, Outcome]
    version: PolicyVersion | None = None


@dataclass(frozen=True, slots=True)
class Produced:
    """A generated and scored step on its way to the trainer."""

    record: StepRecord
    sampler_state: Mapping[str, Any]
    """Of the data order after this step's draw: what a checkpoint of this step saves."""
    timing: dict[str, float]
    started: float
    trace: str
    """Of the span that produced it: training goes on in the same trace."""


class Producer:
    """Makes the steps of a run, one after the other."""

    def __init__(self, ctx: RunContext, sampler: PromptSampler, rollout: RolloutStage, on_stage: OnStage) -> None:
        self._ctx = ctx
        self._sampler = sampler
        self._rollout = rollout
        self._on_stage = on_stage

    async def produce(self, step: int) -> Produced:
        """Draw, generate and score one step; scoring overlaps with generation."""
        started = time.perf_counter()
        self._on_stage(step, "gen")
        config, n = self._ctx.config, self._ctx.config.actor_rollout_ref.rollout.n
        version = self._rollout.version
        prompts = self._sampler.next_batch()
        requests = make_requests(
            prompts, n, training_params(config), "train", config.actor_rollout_ref.rollout.max_model_len
        )
        index = {prompt.group: prompt.index for prompt in prompts}
        self._ctx.ledger.drawn(step, [(request.sample_id, index[request.sample_id.group]) for request in requests])
        completions: dict[SampleId, Completion] = {}
        with span("step.produce", step=step, samples=len(requests)):
            trace = traceparent()
            async with asyncio.TaskGroup() as tasks:
                rewards = RewardStage(self._ctx, prompts, n, tasks)

                async def sink(completion: Completion) -> None:
                    completions[completion.sample_id] = completion
                    await rewards.add(completion)

                with span("stage.gen", step=step):
                    await self._rollout.generate(requests, sink)
                generated = time.perf_counter()
                self._on_stage(step, "reward")
        self._ctx.ledger.completed(list(completions.values()))
        self._ctx.ledger.scored(rewards.results())
        timing = {"gen": generated - started, "reward": time.perf_counter() - generated}
        record = StepRecord(step, prompts, completions, rewards.outcomes, version)
        return Produced(record, self._sampler.state(), timing, started, trace)
