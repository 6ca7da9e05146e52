"""Held-out evaluation: the same services and the same verifier as in training, with validation's own sampling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from argosy.controller.context import RunContext
from argosy.controller.rewards.failures import FailureWindow, check_failures
from argosy.controller.stages.prompt import make_requests, validation_params
from argosy.controller.stages.reward import RewardStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.validation_metrics import ValidationSample, validation_metrics
from argosy.types.ids import SampleId
from argosy.types.records import Completion, Outcome, Prompt, Scored


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """One pass over the held-out prompts."""

    step: int
    """Training step of the weights that answered."""
    metrics: Mapping[str, float]
    per_prompt: Mapping[str, float]
    """Mean headline score ("acc", else the reward) of each prompt, by group id: before and after are compared on it."""
    completions: Mapping[SampleId, Completion]
    outcomes: Mapping[SampleId, Outcome]


async def validate(ctx: RunContext, rollout: RolloutStage, prompts: Sequence[Prompt], step: int) -> ValidationResult:
    """Generate, score and summarise. Training's noise, sampler and ledger do not move (case D14).

    Raises RewardsUnusableError when too many answers could not be judged.
    """
    chosen = ctx.config.actor_rollout_ref.rollout
    n = chosen.val_kwargs.n
    batch_size = ctx.config.data.val_batch_size or len(prompts)
    completions: dict[SampleId, Completion] = {}
    outcomes: dict[SampleId, Outcome] = {}
    router, limits = ctx.services.router, ctx.config.argosy.reward
    reward = ctx.services.reward if router is None else router.validation()
    failing = FailureWindow(limits.max_error_rate, limits.error_window)
    for start in range(0, len(prompts), batch_size):
        part = prompts[start : start + batch_size]
        requests = make_requests(part, n, validation_params(ctx.config), "val", chosen.max_model_len)
        async with asyncio.TaskGroup() as tasks:
            rewards = RewardStage(ctx, part, n, tasks, reward)

            async def sink(completion: Completion, rewards: RewardStage = rewards) -> None:
                completions[completion.sample_id] = completion
                await rewards.add(completion)

            await rollout.answerer.of(part).generate(requests, sink)
        outcomes |= rewards.outcomes
        failing.add(rewards.by_source())
    failures = check_failures(outcomes, limits.max_error_rate)
    samples = [_sample(prompt, SampleId(*_ids(prompt), k), outcomes) for prompt in prompts for k in range(n)]
    judged = [sample for sample in samples if sample is not None]
    metrics = validation_metrics(judged)
    metrics["val-aux/unjudged_fraction"] = 1 - len(judged) / max(len(samples), 1)
    metrics["val-aux/failed_fraction"] = failures["reward/failed_fraction"]
    if router is not None:
        metrics |= {f"val-aux/{name}": value for name, value in router.drain_validation().items()}
    return ValidationResult(step, metrics, _per_prompt(judged), completions, outcomes)


def _ids(prompt: Prompt) -> tuple[int, int]:
    return prompt.group.data_epoch, prompt.group.position


def _sample(prompt: Prompt, sample: SampleId, outcomes: Mapping[SampleId, Outcome]) -> ValidationSample | None:
    outcome = outcomes[sample]
    if not isinstance(outcome, Scored):
        return None
    numeric = {name: float(value) for name, value in outcome.parts.items() if isinstance(value, (int, float))}
    pred = outcome.parts.get("pred")
    return ValidationSample(
        prompt.data_source, str(prompt.group), {**numeric, "reward": outcome.score}, None if pred is None else str(pred)
    )


def _per_prompt(samples: Sequence[ValidationSample]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        headline = sample.variables.get("acc", sample.variables["reward"])
        values.setdefault(sample.prompt, []).append(headline)
    return {prompt: sum(scores) / len(scores) for prompt, scores in values.items()}
