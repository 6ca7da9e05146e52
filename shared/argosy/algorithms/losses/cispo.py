"""CISPO: the clipped ratio is only a weight (MiniMax 2025, "MiniMax-M1", arXiv:2506.13585, eqs. 4 and 5).

    L = -sg[clip(r, 1 - ε_low, 1 + ε_high)] · A · log π

No token loses its gradient; the clip bounds how much it weighs. The paper sets no lower bound (ε_low = 1) and tunes the
upper one.
"""

from __future__ import annotations

from argosy.algorithms.losses.base import (
    PolicyLossInputs,
    PolicyLossResult,
    check_clip_range,
    log_ratio,
    loss_result,
)
from argosy.types.records import LossConfig


def cispo_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Policy gradient with a clipped importance weight, per token. "Clipped" counts the weights that were bounded."""
    check_clip_range(config)
    log_ratios = log_ratio(inputs).detach()
    ratio = log_ratios.exp()
    weight = ratio.clamp(1.0 - config.clip_ratio_low, 1.0 + config.clip_ratio_high)
    return loss_result(-weight * inputs.advantages * inputs.log_probs, log_ratios, ratio != weight)
