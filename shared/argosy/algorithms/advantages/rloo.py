"""REINFORCE leave-one-out.

Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE-Style Optimization for Learning from Human Feedback in
LLMs", arXiv:2402.14740, eq. 8, after Kool et al. 2019: each response's baseline is the mean reward of the n - 1 others,
A_i = R_i - Σ_{j≠i} R_j / (n - 1) = n / (n - 1) · (R_i - mean(R)).
"""

from __future__ import annotations

import numpy as np

from argosy.algorithms.advantages.groups import group_outcomes
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.tokens import broadcast


def rloo(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Outcome rewards against the mean of the group's other samples; n counts judged samples."""
    del options
    outcomes = group_outcomes(inputs, "rloo")
    scalar = outcomes.deviation * outcomes.count / np.maximum(outcomes.count - 1, 1)  # [B]
    return AdvantageResult(broadcast(inputs, scalar), outcomes.groups.metrics())
