"""What a training step logs, under verl's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Completion, FinishReason, Outcome, Scored


def spread(name: str, values: npt.NDArray[Any]) -> dict[str, float]:
    """mean, max and min of some values; nothing at all for no values, rather than a made-up 0 (case H9)."""
    if not len(values):
        return {}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def batch_metrics(
    batch: TrajectoryBatch, completions: Mapping[SampleId, Completion], max_response: int, max_prompt: int
) -> dict[str, float]:
    """Scores, rewards, advantages and lengths of one training batch."""
    mask = batch.ragged("response_mask")
    trained = mask.values.astype(bool)
    scores = batch.scalars("score")
    judged = ~np.isnan(scores)
    rewards = batch.ragged("token_rewards").segment_sum()
    responses, prompts = batch.ragged("response_ids").lengths, batch.ragged("prompt_ids").lengths
    shown = batch.scalars("shaped_score") if batch.has("shaped_score") else scores
    metrics = spread("critic/score", shown[judged]) | spread("critic/rewards", rewards[judged])
    metrics |= spread("critic/advantages", batch.ragged("advantages").values[trained])
    for name in ("values", "returns"):
        if batch.has(name):
            metrics |= spread(f"critic/{name}", batch.ragged(name).values[trained])
    metrics |= spread("response_length", responses) | spread("prompt_length", prompts)
    cut = [completion.finish_reason is FinishReason.LENGTH for completion in completions.values()]
    aborted = [completion.finish_reason is FinishReason.ABORTED for completion in completions.values()]
    metrics |= {
        "response_length/clip_ratio": float(np.mean(cut)),
        "prompt_length/clip_ratio": float(np.mean(prompts >= max_prompt)),
        "response/aborted_ratio": float(np.mean(aborted)),
        "training/trained_tokens": float(trained.sum()),
        "training/max_response_length": float(max_response),
    }
    metrics |= spread("global_seqlen", responses + prompts)
    return metrics | turn_metrics(completions.values())


def turn_metrics(completions: Iterable[Completion]) -> dict[str, float]:
    """num_turns/* as in verl: chat messages, the prompt being one; and the mean of each figure that samples brought."""
    completions = list(completions)
    metrics = spread("num_turns", np.array([completion.message_count for completion in completions]))
    figures: dict[str, list[float]] = {}
    for completion in completions:
        for name, value in completion.metrics.items():
            figures.setdefault(name, []).append(value)
    return metrics | {f"agent/{name}/mean": float(np.mean(values)) for name, values in sorted(figures.items())}


def outcome_metrics(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Mean of each numeric part that scorers return, over the samples that have it; and who could not be judged."""
    parts: dict[str, list[float]] = {}
    outcomes = list(outcomes)
    for outcome in outcomes:
        if isinstance(outcome, Scored):
            for name, value in outcome.parts.items():
                if isinstance(value, (int, float)):
                    parts.setdefault(name, []).append(float(value))
    metrics = {f"reward/{name}/mean": float(np.mean(values)) for name, values in parts.items()}
    abstained = sum(isinstance(outcome, Abstained) for outcome in outcomes)
    metrics["reward/abstained_fraction"] = abstained / max(len(outcomes), 1)
    return metrics


def performance_metrics(
    batch: TrajectoryBatch, timing: Mapping[str, float], generated_tokens: float | None = None
) -> dict[str, float]:
    """Times per stage, per token, and throughput. `timing` maps verl's stage names to seconds, "step" included.

    `generated_tokens`: All that were generated for the step, trained or not; None: those of the batch.
    """
    responses = float(batch.ragged("response_ids").lengths.sum())
    generated = responses if generated_tokens is None else generated_tokens
    total = responses + float(batch.ragged("prompt_ids").lengths.sum())
    metrics = {f"timing_s/{name}": seconds for name, seconds in timing.items()}
    for name, seconds in timing.items():
        tokens = generated if name == "gen" else total
        if tokens and name in ("gen", "ref", "old_log_prob", "values", "adv", "update_critic", "update_actor"):
            metrics[f"timing_per_token_ms/{name}"] = 1000 * seconds / tokens
    step = timing["step"]
    generating = timing.get("gen", step)  # samples that stream in are generated all the time
    memory = psutil.virtual_memory()
    metrics |= {
        "perf/total_num_tokens": total,
        "perf/time_per_step": step,
        "perf/throughput": total / step if step else 0.0,
        "perf/generated_tokens_per_s": generated / generating if generating else 0.0,
        "perf/cpu_memory_used_gb": (memory.total - memory.available) / 2**30,
    }
    return metrics
