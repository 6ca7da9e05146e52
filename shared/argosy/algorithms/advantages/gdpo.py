"""Group reward-decoupled normalisation (GDPO), for scores made of several named rewards.

Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
arXiv:2601.05242, eq. 4-6: each reward k is normalised within the group on its own, so that the sum keeps apart samples
that are good at different things,

    A_i = whiten(Σ_k weight_k · (R_i^k - mean(R^k)) / (std(R^k) + 1e-6)).

As in verl the whitening runs over all trained tokens of the batch. A sample without reward k leaves its mean and
spread and gets nothing from it. Rewards that are no part (a KL penalty on tokens) are not seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from argosy.algorithms.advantages.groups import compare, group_statistics, refuse_singletons
from argosy.algorithms.advantages.grpo import normalised
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.tokens import trained_tokens
from argosy.algorithms.advantages.whiten import whiten
from argosy.types.errors import ConfigError

Floats = npt.NDArray[np.float64]


def gdpo(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Each reward part normalised in its group, weighed, summed, whitened. Raises ConfigError without parts."""
    refuse_singletons(inputs, "gdpo")
    parts = inputs.reward_parts or {}
    weights = _weights(parts, options.gdpo_weights)
    total = np.zeros(len(inputs.group_index))
    metrics = group_statistics(inputs.token_rewards.segment_sum(), inputs.group_index, inputs.judged).metrics()
    for name, weight in weights.items():
        judged = inputs.judged & ~np.isnan(parts[name])
        outcomes = compare(parts[name], inputs.group_index, judged)
        total += weight * normalised(outcomes.deviation, outcomes, by_std=options.norm_adv_by_std_in_grpo)
        metrics[f"critic/gdpo/{name}/mean"] = float(parts[name][judged].mean()) if judged.any() else 0.0
    tokens = trained_tokens(inputs)
    spread = inputs.response_mask.spread(total)[tokens.mask]  # [M]
    return AdvantageResult(tokens.put(whiten(spread)), metrics)


def _weights(parts: Mapping[str, Floats], wanted: Mapping[str, float] | None) -> Mapping[str, float]:
    """Weight by part that counts. Raises ConfigError when there is none, or one that no scorer gives is wanted."""
    if not parts and not wanted:
        raise ConfigError(
            "algorithm.adv_estimator=gdpo needs rewards with names: let compute_score return a dict with more than "
            "`score`, and name its keys in algorithm.gdpo_reward_keys"
        )
    missing = sorted(set(wanted or {}) - set(parts))
    if missing:
        raise ConfigError(
            f"algorithm.gdpo_reward_keys: got {', '.join(missing)}, which no score of this batch has; "
            + (f"there are {', '.join(sorted(parts))}" if parts else "let compute_score return a dict with such a key")
        )
    return dict.fromkeys(parts, 1.0) if wanted is None else wanted
