"""One generation batch: requests out, answers in, scores; all of it in the books."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from argosy.algorithms.catalog import estimator_needs
from argosy.controller.context import RunContext
from argosy.controller.rewards.failures import FailureWindow, check_failures
from argosy.controller.stages.load import ServerLoad
from argosy.controller.stages.prompt import greedy_requests, make_requests, training_params
from argosy.controller.stages.reward import RewardStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.telemetry.traces import span
from argosy.types.ids import SampleId
from argosy.types.records import Completion, GenerateRequest, Outcome, Prompt

OnStage = Callable[[int, str], None]
"""Told (step, stage name) when the loop begins to wait for a stage."""


@dataclass(frozen=True, slots=True)
class GenerationBatch:
    """Prompts, and all that came of them: greedy answers (sample n of a prompt) are among the completions."""

    prompts: Sequence[Prompt]
    completions: Mapping[SampleId, Completion]
    outcomes: Mapping[SampleId, Outcome]
    generate_s: float
    score_s: float
    """Seconds that scoring took beyond generation."""


class GenerationStage:
    """Generates and scores; scoring overlaps with generation."""

    def __init__(self, ctx: RunContext, rollout: RolloutStage, on_stage: OnStage) -> None:
        self._ctx = ctx
        self._rollout = rollout
        self._on_stage = on_stage
        self._n = ctx.config.actor_rollout_ref.rollout.n
        self._greedy = "baseline" in estimator_needs(ctx.config.algorithm.adv_estimator)
        reward = ctx.config.argosy.reward
        self.failures = FailureWindow(reward.max_error_rate, reward.error_window)
        """Over all generation batches of the run."""
        self._load = ServerLoad(lambda: {name: ctx.services.rollouts[name] for name in rollout.in_use()})

    async def generate(self, step: int, prompts: Sequence[Prompt]) -> GenerationBatch:
        """Answers and outcomes of all prompts. Raises RewardsUnusableError when too many could not be judged."""
        started = time.perf_counter()
        self._on_stage(step, "gen")
        requests = self._requests(prompts)
        index = {prompt.group: prompt.index for prompt in prompts}
        self._ctx.ledger.drawn([(request.sample_id, index[request.sample_id.group]) for request in requests])
        completions: dict[SampleId, Completion] = {}
        async with asyncio.TaskGroup() as tasks:
            rewards = RewardStage(self._ctx, prompts, self._n + self._greedy, tasks)

            async def sink(completion: Completion) -> None:
                completions[completion.sample_id] = completion
                await rewards.add(completion)

            with span("stage.gen", step=step, samples=len(requests)):
                async with self._load.watched():
                    await self._rollout.answerer.of(prompts).generate(requests, sink)
            generated = time.perf_counter()
            self._on_stage(step, "reward")
        self._ctx.ledger.completed(list(completions.values()))
        self._ctx.ledger.scored(rewards.results())
        check_failures(rewards.outcomes, self._ctx.config.argosy.reward.max_error_rate)
        self.failures.add(rewards.by_source())
        scored = time.perf_counter()
        return GenerationBatch(prompts, completions, rewards.outcomes, generated - started, scored - generated)

    def metrics(self) -> dict[str, float]:
        """How busy the rollout servers were since the last call."""
        return self._load.metrics()

    def _requests(self, prompts: Sequence[Prompt]) -> list[GenerateRequest]:
        params = training_params(self._ctx.config)
        longest = self._ctx.config.actor_rollout_ref.rollout.max_model_len
        requests = make_requests(prompts, self._n, params, "train", longest)
        if self._greedy:
            requests += greedy_requests(prompts, self._n, params, longest)
        return sorted(requests, key=lambda request: request.sample_id)
