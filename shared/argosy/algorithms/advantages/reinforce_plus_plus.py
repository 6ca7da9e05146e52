"""REINFORCE++ and its form with a group baseline.

Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
arXiv:2501.03262. Plain: A_t = Σ_{t'≥t} γ^{t'-t} r_{t'}, whitened over all trained tokens of the batch; it needs one
response per prompt. With baseline: A_i = R_i - mean(R) over the group on every token, then whitened likewise.
"""

from __future__ import annotations

from argosy.algorithms.advantages.groups import group_outcomes
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.tokens import discounted_to_go, trained_tokens
from argosy.algorithms.advantages.whiten import whiten


def reinforce_plus_plus(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Discounted rewards to go, whitened over the batch."""
    tokens = trained_tokens(inputs)
    to_go = discounted_to_go(tokens.fold(inputs.token_rewards), options.gamma)
    return AdvantageResult(tokens.put(whiten(to_go)))


def reinforce_plus_plus_baseline(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Outcome rewards against the group's mean, whitened over the batch."""
    del options
    outcomes = group_outcomes(inputs, "reinforce_plus_plus_baseline")
    tokens = trained_tokens(inputs)
    deviation = inputs.response_mask.spread(outcomes.deviation)[tokens.mask]  # [M]
    return AdvantageResult(tokens.put(whiten(deviation)), outcomes.groups.metrics())
