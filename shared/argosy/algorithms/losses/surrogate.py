"""The clipped surrogate that several modes share."""

from __future__ import annotations

import torch
from torch import Tensor

from argosy.types.records import LossConfig


def clipped_surrogate(ratio: Tensor, advantages: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """max(-A·r, -A·clip(r, 1 - ε_low, 1 + ε_high)), and where the bound is what is used (bool); all [N].

    Only there the gradient is cut, so only there a token counts as clipped (case B21).
    """
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - config.clip_ratio_low, 1.0 + config.clip_ratio_high)
    return torch.maximum(plain, bounded), bounded > plain
