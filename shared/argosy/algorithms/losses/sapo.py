"""SAPO: a smooth gate in place of a clip (Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv:2511.20347).

    L = -A · (4/τ) · σ(τ·(r - 1)),   τ = τ_pos where A > 0, else τ_neg      eqs. 5 and 6

At r = 1 the gradient is the policy gradient's; it fades on both sides, faster the larger τ is. Negative advantages get
the larger τ, because they raise the probability of all other tokens at once (§4).

verl averages sequences whatever loss_agg_mode says; here that is what the mode gives where loss_agg_mode is not set.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from argosy.algorithms.losses.base import PolicyLossInputs, PolicyLossResult, log_ratio, loss_result
from argosy.algorithms.losses.options import read_options, require
from argosy.types.records import LossConfig

TAU_POSITIVE = 1.0
TAU_NEGATIVE = 1.05


@dataclass(frozen=True, slots=True)
class SapoOptions:
    """Read from LossConfig.options."""

    tau_pos: float = TAU_POSITIVE
    """τ where A > 0."""
    tau_neg: float = TAU_NEGATIVE
    """τ where A ≤ 0."""

    def __post_init__(self) -> None:
        require("tau_pos", self.tau_pos, 0.0, low_open=True)
        require("tau_neg", self.tau_neg, 0.0, low_open=True)


def sapo_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Softly gated surrogate per token; nothing is clipped."""
    options = read_options(SapoOptions, config)
    log_ratios = log_ratio(inputs)
    advantages = inputs.advantages
    # Tensors, not floats: where() of two floats would be float32 whatever the advantages are.
    positive, negative = advantages.new_tensor(options.tau_pos), advantages.new_tensor(options.tau_neg)
    tau = torch.where(advantages > 0, positive, negative)
    gate = torch.sigmoid(tau * (log_ratios.exp() - 1.0)) * (4.0 / tau)
    return loss_result(-advantages * gate, log_ratios)
