"""Group policy gradient (GPG).

Chu et al. 2025, "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning", arXiv:2504.02546,
eq. 6: A_i = α (R_i - mean(R)) with no deviation below it. α makes up for samples that give no gradient. The paper
counts those of groups without spread; we take verl's α = B / (number of samples with R ≠ 0), so that a run's learning
rate carries over. B and the number count judged samples.
"""

from __future__ import annotations

import numpy as np

from argosy.algorithms.advantages.groups import group_outcomes
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.tokens import broadcast


def gpg(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Outcome rewards against the group's mean, scaled by α over the whole batch."""
    del options
    outcomes = group_outcomes(inputs, "gpg")
    judged = outcomes.rewards[inputs.judged]
    alpha = len(judged) / max(int(np.count_nonzero(judged)), 1)  # no reward at all: every deviation is 0 as well
    metrics = {**outcomes.groups.metrics(), "critic/gpg_alpha": float(alpha)}
    return AdvantageResult(broadcast(inputs, alpha * outcomes.deviation), metrics)
