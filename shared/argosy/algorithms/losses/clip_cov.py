"""Clip-Cov: a few tokens that would cost the most entropy are left out (Cui et al. 2025, "The Entropy Mechanism of
Reinforcement Learning for Reasoning Language Models", arXiv:2505.22617, §4).

    cov_t = (A_t - mean A) · (log π_t - mean log π)            over the trained tokens of the mini-batch
    I     = max(1, ⌊ρ·N⌋) tokens at random of those with ω_low < cov_t < ω_high, not already clipped
    L     = 0 on I, else max(-A·r, -A·clip(r, 1 - ε_low, 1 + ε_high))

The paper stops the gradient on I; verl and we set the loss to 0 there, which is the same gradient. verl takes means, N
and the random choice from each micro-batch, so its result follows the layout; ours are of the whole mini-batch, and the
choice is a function of (seed, step, sample, token). verl's pg_clipfrac leaves out the tokens that the ratio clips; ours
counts every token whose gradient is cut, and actor/cov_fraction those on I.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from argosy.algorithms.losses.base import (
    LOG_RATIO_LIMIT,
    PolicyLossInputs,
    PolicyLossResult,
    check_clip_range,
    log_ratio,
    loss_result,
    whole_batch_column,
)
from argosy.algorithms.losses.mini_batch import Floats, MiniBatch, at_least_one, covariance, smallest
from argosy.algorithms.losses.options import read_options, require
from argosy.algorithms.losses.surrogate import clipped_surrogate
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig

CLIP_COV_RATIO = 0.0002
CLIP_COV_LOW = 1.0
CLIP_COV_HIGH = 5.0


@dataclass(frozen=True, slots=True)
class ClipCovOptions:
    """Read from LossConfig.options."""

    clip_cov_ratio: float = CLIP_COV_RATIO
    """ρ, a share of the mini-batch's trained tokens."""
    clip_cov_lb: float = CLIP_COV_LOW
    """ω_low."""
    clip_cov_ub: float = CLIP_COV_HIGH
    """ω_high."""

    def __post_init__(self) -> None:
        require("clip_cov_ratio", self.clip_cov_ratio, 0.0, 1.0, low_open=True)
        if not self.clip_cov_lb < self.clip_cov_ub:
            raise InvalidInputError(
                f"clip_cov_lb must be below clip_cov_ub, got {self.clip_cov_lb} and {self.clip_cov_ub}"
            )


def clip_cov_column(batch: MiniBatch, config: LossConfig) -> Floats:
    """1 on I, else 0; [N]."""
    options = read_options(ClipCovOptions, config)
    values = covariance(batch)
    among = (values > options.clip_cov_lb) & (values < options.clip_cov_ub) & ~_clipped(batch, config)
    count = at_least_one(options.clip_cov_ratio, int(batch.trained.sum()))
    return smallest(batch.keys, among, count).astype(np.float64)


def _clipped(batch: MiniBatch, config: LossConfig) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    log_ratios = np.clip(batch.log_probs - batch.old_log_probs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = torch.from_numpy(np.exp(log_ratios))
    return np.asarray(clipped_surrogate(ratio, torch.from_numpy(batch.advantages), config)[1].numpy())


def clip_cov_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Clipped surrogate per token, 0 at the tokens that the mini-batch column marks."""
    check_clip_range(config)
    read_options(ClipCovOptions, config)
    log_ratios = log_ratio(inputs)
    losses, clipped = clipped_surrogate(log_ratios.exp(), inputs.advantages, config)
    left_out = whole_batch_column(inputs, config) > 0
    losses = torch.where(left_out, losses.new_zeros(()), losses)
    return loss_result(losses, log_ratios, clipped | left_out, **{"actor/cov_fraction": left_out})
