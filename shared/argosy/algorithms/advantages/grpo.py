"""Group-relative advantages (GRPO).

Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
arXiv:2402.03300, §4.1.2 (outcome supervision): A_i = (R_i - mean(R)) / std(R) over the group, the same for all tokens
of sample i. As in verl the deviation is unbiased and 1e-6 is added to it. Without the division
(`norm_adv_by_std_in_grpo=False`) it is Dr.GRPO's: Liu et al. 2025, "Understanding R1-Zero-Like Training",
arXiv:2503.20783, eq. 3.

Rules for what the papers leave open (cases B1, B3, G1), the same everywhere in Argosy:
a group with one judged sample, or whose rewards are all equal, has no baseline to compare with: its advantages are 0.
Samples that nobody could judge leave mean and spread and get 0.
"""

from __future__ import annotations

import numpy as np

from argosy.algorithms.advantages.groups import group_statistics
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.types.ragged import Ragged

STD_EPSILON = 1e-6


def grpo(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Outcome rewards R_i = Σ_t r_t normalised within each group and broadcast over the response mask."""
    rewards = inputs.token_rewards.segment_sum()  # [B]
    groups = group_statistics(rewards, inputs.group_index, inputs.judged)
    mean, std = groups.mean[inputs.group_index], groups.std[inputs.group_index]  # [B], [B]
    signal = inputs.judged & (std > 0)
    divisor = std + STD_EPSILON if options.norm_adv_by_std_in_grpo else np.ones_like(std)
    scalar = np.where(signal, (rewards - mean) / divisor, 0.0)  # [B]
    per_token = inputs.response_mask.spread(scalar) * inputs.response_mask.values  # [N]
    group_count = max(len(groups.count), 1)
    metrics = {
        "critic/groups/zero_spread_fraction": float(groups.flat.sum() / group_count),
        "critic/groups/singleton_fraction": float((groups.count == 1).sum() / group_count),
        "critic/groups/unjudged_fraction": float((groups.count == 0).sum() / group_count),
    }
    return AdvantageResult(Ragged(per_token.astype(np.float32), inputs.response_mask.offsets), metrics)
