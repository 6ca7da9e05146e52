"""PPO's clipped surrogate, with clip-higher and dual clip.

With r = π/π_old, A the advantage, and bounds [1 - ε_low, 1 + ε_high]:

    L = max(-A·r, -A·clip(r, 1 - ε_low, 1 + ε_high))     Schulman et al. 2017, arXiv:1707.06347, eq. 7
    ε_high > ε_low ("clip-higher")                       DAPO, arXiv:2503.14476, eq. 10
    A < 0:  L = min(L, -A·c), c > 1                      dual clip, Ye et al. 2020, arXiv:1912.09729, eq. 5

GRPO (arXiv:2402.03300, eq. 3) uses this same loss with group-relative advantages.
"""

from __future__ import annotations

import torch

from argosy.algorithms.losses.base import LOG_RATIO_LIMIT, PolicyLossInputs, PolicyLossResult
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig


def vanilla_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Clipped surrogate per token; a metric counts a token as clipped only where its gradient is really cut (B21)."""
    _check(config)
    log_ratio = (inputs.log_probs - inputs.old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    advantages = inputs.advantages
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - config.clip_ratio_low, 1.0 + config.clip_ratio_high)
    clipped = torch.maximum(plain, bounded)
    ceiling = -advantages * config.clip_ratio_c
    negative = advantages < 0
    losses = torch.where(negative, torch.minimum(clipped, ceiling), clipped)
    metrics = {
        "actor/pg_clipfrac": bounded > plain,
        "actor/pg_clipfrac_lower": negative & (ceiling < clipped),
        "actor/ppo_kl": -log_ratio,
    }
    return PolicyLossResult(losses, {name: value.detach().to(losses.dtype) for name, value in metrics.items()})


def _check(config: LossConfig) -> None:
    if not config.clip_ratio_c > 1.0:
        raise InvalidInputError(f"clip_ratio_c must be above 1 (dual clip), got {config.clip_ratio_c}")
    if config.clip_ratio_low < 0 or config.clip_ratio_high < 0:
        raise InvalidInputError(
            f"clip ratios must not be negative, got low {config.clip_ratio_low}, high {config.clip_ratio_high}"
        )
