"""GSPO: one importance ratio for the whole sequence (Zheng et al. 2025, arXiv:2507.18071).

    s_i   = exp(mean_t(log π_t - log π_old,t))            the sequence's ratio, length-normalised (eq. 7)
    s_i,t = sg[s_i] · π_t / sg[π_t]                       its token form (GSPO-token, eq. 14)
    L_t   = max(-A·s_i,t, -A·clip(s_i,t, 1 - ε_low, 1 + ε_high))    eqs. 5 and 13

The value of s_i,t is s_i for every token, and with one advantage for the sequence the gradient of the sequence's mean
is that of eq. 5. The paper's clip range is far smaller than PPO's, since s_i moves less: 3e-4 below, 4e-4 above (§5.1).

The paper averages sequences ("seq-mean-token-mean"). verl does so whatever loss_agg_mode says; here that is what the
mode gives where loss_agg_mode is not set, and a set one is obeyed. verl bounds log s above by 10; we bound it by ±20,
as every other ratio.
"""

from __future__ import annotations

from argosy.algorithms.losses.base import (
    LOG_RATIO_LIMIT,
    PolicyLossInputs,
    PolicyLossResult,
    check_clip_range,
    loss_result,
    sequence_mean,
)
from argosy.algorithms.losses.surrogate import clipped_surrogate
from argosy.types.records import LossConfig


def gspo_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Clipped surrogate on the sequence's ratio, per token."""
    check_clip_range(config)
    log_ratios = (inputs.log_probs - inputs.old_log_probs).detach()
    of_sequence = sequence_mean(log_ratios, inputs.layout).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)  # [B]
    one = (inputs.log_probs - inputs.log_probs.detach()).exp()  # value 1, gradient that of log π
    losses, clipped = clipped_surrogate(of_sequence.exp()[inputs.layout.owner] * one, inputs.advantages, config)
    return loss_result(losses, log_ratios, clipped)
