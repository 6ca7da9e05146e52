"""PPO's clipped surrogate, with clip-higher and dual clip.

With r = π/π_old, A the advantage, and bounds [1 - ε_low, 1 + ε_high]:

    L = max(-A·r, -A·clip(r, 1 - ε_low, 1 + ε_high))     Schulman et al. 2017, arXiv:1707.06347, eq. 7
    ε_high > ε_low ("clip-higher")                       DAPO, arXiv:2503.14476, eq. 10
    A < 0:  L = min(L, -A·c), c > 1                      dual clip, Ye et al. 2020, arXiv:1912.09729, eq. 5

GRPO (arXiv:2402.03300, eq. 3) uses this same loss with group-relative advantages.
"""

from __future__ import annotations

import torch

from argosy.algorithms.losses.base import (
    PolicyLossInputs,
    PolicyLossResult,
    check_clip_range,
    check_ratio_bound,
    log_ratio,
    loss_result,
)
from argosy.algorithms.losses.surrogate import clipped_surrogate
from argosy.types.records import LossConfig


def vanilla_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Clipped surrogate per token; a metric counts a token as clipped only where its gradient is really cut (B21)."""
    check_clip_range(config)
    check_ratio_bound(config)
    log_ratios = log_ratio(inputs)
    losses, clipped = clipped_surrogate(log_ratios.exp(), inputs.advantages, config)
    ceiling = -inputs.advantages * config.clip_ratio_c
    negative = inputs.advantages < 0
    bounded = torch.where(negative, torch.minimum(losses, ceiling), losses)
    return loss_result(bounded, log_ratios, clipped, negative & (ceiling < losses))
