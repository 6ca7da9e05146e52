"""The sampling distribution written as a plain loop in float64: what the engine's sampler is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from argosy.types.records import SamplingParams


def distribution(
    logits: Sequence[float], params: SamplingParams, seen: Iterable[int] = (), banned: Iterable[int] = ()
) -> list[float]:
    """Probability of each token: penalty, banned ids, temperature, top-k, top-p, min-p, renormalised."""
    scores = [float(value) for value in logits]
    for token in set(seen):
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in banned:
        scores[token] = -math.inf
    if params.temperature == 0:
        return softmax(scores)
    scores = [score / params.temperature for score in scores]
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if params.top_k > 0:
        order = order[: params.top_k]
    weights = softmax([scores[token] for token in order])
    kept: list[int] = []
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and mass >= params.top_p and params.top_p < 1:
            break
        kept.append(token)
        mass += weight
    peak = scores[order[0]]
    kept = [token for token in kept if params.min_p == 0 or math.exp(scores[token] - peak) >= params.min_p]
    final = softmax([scores[token] for token in kept])
    result = [0.0] * len(scores)
    for token, weight in zip(kept, final, strict=True):
        result[token] = weight
    return result


def softmax(scores: Sequence[float]) -> list[float]:
    peak = max(scores)
    weights = [math.exp(score - peak) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
