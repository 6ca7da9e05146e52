"""On-policy optimal baseline (OPO).

Hao et al. 2025, "On-Policy RL with Optimal Reward Baseline", arXiv:2505.23585, eq. 7: a response's squared gradient
norm grows with its length, so the baseline of least variance weighs rewards by length,
A_i = R_i - Σ_j l_j R_j / Σ_j l_j over the group, l = trained tokens.
"""

from __future__ import annotations

import numpy as np

from argosy.algorithms.advantages.groups import group_outcomes
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.tokens import broadcast


def opo(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Outcome rewards against the group's length-weighted mean."""
    del options
    outcomes = group_outcomes(inputs, "opo")
    index, signal = inputs.group_index, outcomes.signal
    lengths = np.where(signal, inputs.response_mask.segment_sum(), 0.0)  # [B]
    # around the plain mean: R - Σ l R / Σ l = d - Σ l d / Σ l for d = R - mean, which keeps the digits of close rewards
    weighted = np.bincount(index, weights=lengths * outcomes.deviation)  # [G]
    total = np.bincount(index, weights=lengths)  # [G]
    baseline = weighted / np.maximum(total, 1)
    scalar = np.where(signal, outcomes.deviation - baseline[index], 0.0)  # [B]
    return AdvantageResult(broadcast(inputs, scalar), outcomes.groups.metrics())
