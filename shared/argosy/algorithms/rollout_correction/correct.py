"""Weights, rejection and metrics of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from argosy.algorithms.rollout_correction.metrics import divergence_metrics, rejection_metrics, weight_metrics
from argosy.algorithms.rollout_correction.ratios import LogRatios
from argosy.algorithms.rollout_correction.rejection import apply_rules
from argosy.algorithms.rollout_correction.thresholds import CorrectionRules
from argosy.algorithms.rollout_correction.weights import importance_weights
from argosy.types.ragged import Ragged


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """What the update is to take account of."""

    response_mask: Ragged
    """[N] int8: the mask without the rejected tokens."""
    weights: Ragged | None
    """[N] float32, 0 where a token was not trained; None without importance weights."""
    metrics: Mapping[str, float]
    """rollout_corr/*."""


def correct(
    old_log_probs: Ragged, rollout_log_probs: Ragged, response_mask: Ragged, rules: CorrectionRules
) -> Correction:
    """Apply `rules` to the response tokens of a batch (ragged columns of equal lengths).

    The weights are made over all tokens of the given mask, as in verl; rejection then takes tokens out of the mask.
    Without rules only the divergence metrics come out.
    """
    ratios = LogRatios.of(old_log_probs, rollout_log_probs, response_mask)
    metrics = divergence_metrics(ratios, old_log_probs, rollout_log_probs)
    column = None
    if rules.weights is not None:
        weights = importance_weights(ratios, rules.weights)
        metrics |= weight_metrics(ratios, weights, rules.weights)
        column = Ragged(weights.applied.astype(np.float32), response_mask.offsets)
    kept, criteria = apply_rules(ratios, rules.rejections)
    metrics |= rejection_metrics(ratios, criteria)
    mask = Ragged((ratios.trained & kept).astype(np.int8), response_mask.offsets)
    return Correction(mask, column, metrics)
