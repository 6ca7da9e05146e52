"""Importance weights π_old/μ of tokens or of whole sequences, truncated or banded.

With ℓ_t = log π_old − log μ and c = LOG_RATIO_LIMIT:

    token      ρ_t = exp(clamp(ℓ_t, ±c))            biased, low variance
    sequence   ρ_t = exp(clamp(Σ_s ℓ_s, ±c))        unbiased, high variance; the same for all tokens of a sequence
    TIS        w_t = min(ρ_t, upper)                Yao et al. 2025
    IcePop     w_t = ρ_t where lower ≤ ρ_t ≤ upper, else 0      Ling Team 2025, arXiv:2510.18855

Batch normalisation divides by the mean of w: over trained tokens, or over sequences at sequence level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from argosy.algorithms.rollout_correction.ratios import LOG_RATIO_LIMIT, Floats, LogRatios
from argosy.algorithms.rollout_correction.thresholds import WeightRule

SMALLEST_MEAN = 1e-8
"""A batch whose mean weight is below this has been banded away: there is nothing to normalise."""


def _token(ratios: LogRatios) -> Floats:
    return np.exp(ratios.clamped)


def _sequence(ratios: LogRatios) -> Floats:
    total = np.clip(ratios.sums(ratios.values), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)  # [B]
    return np.asarray(ratios.spread(np.exp(total)), np.float64)


WEIGHTS: dict[str, Callable[[LogRatios], Floats]] = {"token": _token, "sequence": _sequence}
"""rollout_is → untruncated weights [N]."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceWeights:
    """Of N response tokens; 0 where a token is not trained."""

    raw: Floats
    """Before truncation."""
    bounded: Floats
    """After it, before batch normalisation."""
    applied: Floats
    """What multiplies the loss."""
    normalizer: float
    """What batch normalisation divided by; 1 without it."""


def importance_weights(ratios: LogRatios, rule: WeightRule) -> ImportanceWeights:
    """Weights by `rule`, in float64."""
    raw = np.where(ratios.trained, WEIGHTS[rule.level](ratios), 0.0)
    if rule.lower is None:
        bounded = np.minimum(raw, rule.upper)
    else:
        bounded = np.where((raw >= rule.lower) & (raw <= rule.upper), raw, 0.0)
    normalizer = _mean(ratios, bounded, rule.level) if rule.batch_normalize else 1.0
    return ImportanceWeights(raw, bounded, bounded / normalizer, normalizer)


def _mean(ratios: LogRatios, weights: Floats, level: str) -> float:
    if not ratios.trained.any():
        return 1.0
    if level == "token":
        mean = float(weights[ratios.trained].mean())
    else:
        mean = float(ratios.means(weights)[ratios.live].mean())
    return mean if mean > SMALLEST_MEAN else 1.0
