"""ReMax: the reward of the greedy answer as baseline.

Li et al. 2024, "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language
Models", arXiv:2310.10505, eq. 5 and algorithm 1: A_t = Σ_{t'≥t} r_{t'} - R(greedy answer to the same prompt).

A greedy answer that nobody could judge is no baseline: its prompt's samples get 0, as everywhere in Argosy.
"""

from __future__ import annotations

import numpy as np

from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.tokens import discounted_to_go, trained_tokens
from argosy.types.errors import ConfigError


def remax(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Rewards to go less the greedy answer's. Raises ConfigError without baselines."""
    del options
    if inputs.baseline is None:
        raise ConfigError(
            "algorithm.adv_estimator=remax needs the reward of a greedy answer to each prompt, and this batch has none"
        )
    tokens = trained_tokens(inputs)
    to_go = discounted_to_go(tokens.fold(inputs.token_rewards), 1.0)  # [M]
    baseline = inputs.response_mask.spread(inputs.baseline)[tokens.mask]  # [M]
    advantages = np.where(np.isnan(baseline), 0.0, to_go - baseline)
    known = inputs.baseline[~np.isnan(inputs.baseline)]
    metrics = {
        "critic/baseline/mean": float(known.mean()) if len(known) else 0.0,
        "critic/baseline/unjudged_fraction": 1.0 - len(known) / max(len(inputs.baseline), 1),
    }
    return AdvantageResult(tokens.put(advantages), metrics)
