"""Group-relative advantages: GRPO, Dr.GRPO, and GRPO for pass@k.

GRPO: Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
arXiv:2402.03300, §4.1.2 (outcome supervision): A_i = (R_i - mean(R)) / std(R) over the group, the same for all tokens
of sample i. As in verl the deviation is unbiased and 1e-6 is added to it. Without the division
(`norm_adv_by_std_in_grpo=False`) it is Dr.GRPO's: Liu et al. 2025, "Understanding R1-Zero-Like Training",
arXiv:2503.20783, eq. 3.

Pass@k: Tang et al. 2025, "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning",
arXiv:2503.19595, §3: the objective is the best of the k samples, so with the second best as leave-one-out baseline only
the best sample has an advantage, max(R) - second(R).

What the papers leave open (cases B1, B2, B3, G1) is in groups.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from argosy.algorithms.advantages.groups import Outcomes, group_outcomes
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.tokens import broadcast

STD_EPSILON = 1e-6


def grpo(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Outcome rewards R_i = Σ_t r_t normalised within each group and broadcast over the response mask."""
    outcomes = group_outcomes(inputs, "grpo")
    scalar = normalised(outcomes.deviation, outcomes, by_std=options.norm_adv_by_std_in_grpo)
    return AdvantageResult(broadcast(inputs, scalar), outcomes.groups.metrics())


def dr_grpo(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """R_i - mean(R): GRPO without the division, whatever `norm_adv_by_std_in_grpo` says."""
    del options
    outcomes = group_outcomes(inputs, "dr_grpo")
    return AdvantageResult(broadcast(inputs, outcomes.deviation), outcomes.groups.metrics())


def grpo_passk(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """The best sample of each group gets max(R) - second(R), normalised like GRPO; all others get 0."""
    outcomes = group_outcomes(inputs, "grpo_passk")
    lead = _lead_of_the_best(outcomes, inputs.group_index)
    scalar = normalised(lead, outcomes, by_std=options.norm_adv_by_std_in_grpo)
    return AdvantageResult(broadcast(inputs, scalar), outcomes.groups.metrics())


def normalised(values: npt.NDArray[np.float64], outcomes: Outcomes, *, by_std: bool) -> npt.NDArray[np.float64]:
    """`values` [B], divided by their group's deviation if `by_std`."""
    return values / (outcomes.std + STD_EPSILON) if by_std else values


def _lead_of_the_best(outcomes: Outcomes, group_index: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """max(R) - second(R) at the best sample of each group with a signal, 0 elsewhere, [B]."""
    lead = np.zeros(len(group_index))
    chosen = np.flatnonzero(outcomes.signal)  # whole groups of ≥ 2, less their unjudged samples
    order = chosen[np.lexsort((outcomes.rewards[chosen], group_index[chosen]))]  # by group, best last
    groups = group_index[order]
    best = np.flatnonzero(np.append(groups[1:] != groups[:-1], True)) if len(order) else order
    lead[order[best]] = outcomes.rewards[order[best]] - outcomes.rewards[order[best - 1]]
    return lead
