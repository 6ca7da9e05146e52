"""GMPO: the geometric mean of token ratios (Zhao et al. 2025, "Geometric-Mean Policy Optimization", arXiv:2507.20673).

    z_t = min(sgn(A)·log r_t, sgn(A)·clip(log r_t, -ε_low, ε_high)) · sgn(A)     clipped per token, in log space
    L_i = -A · exp(mean_t z_t)                                                    one loss for the sequence (§3)

Every token of the sequence carries L_i, so "seq-mean-token-mean" is the paper's mean over sequences; it is what the
mode gives where loss_agg_mode is not set. verl always averages so, but over all rows, fully masked ones included; we
leave those out. The paper's range is (e^-0.4, e^0.4): clip_ratio_low = clip_ratio_high = 0.4.

A is one number for the sequence, as in the paper; advantages that vary inside one are averaged over its trained tokens.
verl takes the sign from each token and the size from that average; we take both from the average. With
rollout_is_weights, a sequence's loss is multiplied by their mean, in verl by their geometric mean.
"""

from __future__ import annotations

import torch

from argosy.algorithms.losses.base import (
    PolicyLossInputs,
    PolicyLossResult,
    check_clip_range,
    log_ratio,
    loss_result,
    sequence_mean,
)
from argosy.types.records import LossConfig


def geo_mean_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """The sequence's loss at each of its tokens. pg_clipfrac counts tokens clipped at A > 0, _lower those at A < 0."""
    check_clip_range(config)
    owner = inputs.layout.owner
    advantage = sequence_mean(inputs.advantages, inputs.layout)  # [B]
    sign = advantage.sign()[owner]
    log_ratios = log_ratio(inputs)
    bounded = log_ratios.clamp(-config.clip_ratio_low, config.clip_ratio_high)
    kept = sign * torch.minimum(sign * log_ratios, sign * bounded)
    losses = -advantage * sequence_mean(kept, inputs.layout).exp()  # [B]
    cut = sign * log_ratios > sign * bounded
    return loss_result(losses[owner], log_ratios, cut & (sign > 0), cut & (sign < 0))
