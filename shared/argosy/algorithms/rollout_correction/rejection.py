"""Rejection: tokens or sequences leave the loss where the sampled policy and the trained one differ too much (MIS).

Estimators of KL(μ, π_old) from tokens sampled by μ (Schulman 2020), with ℓ = log π_old − log μ within ±LOG_RATIO_LIMIT:

    k1 = −ℓ        k2 = ℓ²/2        k3 = e^ℓ − 1 − ℓ

taken per token, or summed, averaged or maximised over a sequence's trained tokens (Liu et al. 2025; the average of k1
is the log of the ratio's geometric mean). A token is kept where every criterion is within its bounds; a sequence
criterion keeps or rejects all of its tokens. Rejected samples keep their rewards: they stay in their group's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from argosy.algorithms.rollout_correction.ratios import Flags, Floats, LogRatios
from argosy.algorithms.rollout_correction.thresholds import RejectionRule

DIVERGENCES: dict[str, Callable[[Floats], Floats]] = {
    "k1": lambda ratio: -ratio,
    "k2": lambda ratio: 0.5 * ratio**2,
    "k3": lambda ratio: np.expm1(ratio) - ratio,
}
"""Clamped ℓ [N] → estimate [N]."""

OVER: dict[str, Callable[[LogRatios, Floats], Floats]] = {
    "seq_sum": lambda ratios, values: ratios.sums(values),
    "seq_mean": lambda ratios, values: ratios.means(values),
    "seq_max": lambda ratios, values: ratios.maxima(values),
}
"""Estimates [N] → one per sequence [B]; "token" takes them as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Criterion:
    """What one rule found."""

    rule: RejectionRule
    statistic: Floats
    """[N] of a token rule, [B] of a sequence rule."""
    kept: Flags
    """[N]."""


def apply_rule(ratios: LogRatios, rule: RejectionRule) -> Criterion:
    """Which tokens a rule keeps; tokens that are not trained anyway are kept by all."""
    estimates = DIVERGENCES[rule.divergence](ratios.clamped)  # [N]
    statistic = estimates if rule.over == "token" else OVER[rule.over](ratios, estimates)
    inside = (statistic >= rule.lower) & (statistic <= rule.upper)
    per_token = inside if rule.over == "token" else np.asarray(ratios.spread(inside), np.bool_)
    return Criterion(rule, statistic, per_token | ~ratios.trained)


def apply_rules(ratios: LogRatios, rules: Sequence[RejectionRule]) -> tuple[Flags, list[Criterion]]:
    """Tokens [N] that every rule keeps, and what each found."""
    found = [apply_rule(ratios, rule) for rule in rules]
    kept = np.ones(len(ratios.values), np.bool_)
    for criterion in found:
        kept &= criterion.kept
    return kept, found
