"""KL-Cov: the tokens that would cost the most entropy are held back by a penalty (Cui et al. 2025, "The Entropy
Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv:2505.22617, §4).

    cov_t = (A_t - mean A) · (log π_t - mean log π)            over the trained tokens of the mini-batch
    I     = the max(1, ⌊k·N⌋) tokens with the largest cov_t
    L     = -A·r + β·|log π - log π_old| on I, else -A·r       nothing is clipped

verl ranks each micro-batch by itself, so its result follows the layout; ours ranks the whole mini-batch. actor/ppo_kl
is the mean of -log r as for every mode (verl: of |log r| here), and actor/cov_fraction the share of I. verl's code
falls back to β = 1, but its configuration always sets 0.1, which is the default here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from argosy.algorithms.losses.base import (
    PolicyLossInputs,
    PolicyLossResult,
    log_ratio,
    loss_result,
    whole_batch_column,
)
from argosy.algorithms.losses.mini_batch import Floats, MiniBatch, at_least_one, covariance, largest
from argosy.algorithms.losses.options import read_options, require
from argosy.types.records import LossConfig

KL_COV_RATIO = 0.0002
PPO_KL_COEF = 0.1


@dataclass(frozen=True, slots=True)
class KlCovOptions:
    """Read from LossConfig.options."""

    kl_cov_ratio: float = KL_COV_RATIO
    """k, a share of the mini-batch's trained tokens."""
    ppo_kl_coef: float = PPO_KL_COEF
    """β."""

    def __post_init__(self) -> None:
        require("kl_cov_ratio", self.kl_cov_ratio, 0.0, 1.0, low_open=True)
        require("ppo_kl_coef", self.ppo_kl_coef, 0.0)


def kl_cov_column(batch: MiniBatch, config: LossConfig) -> Floats:
    """1 on I, else 0; [N]."""
    options = read_options(KlCovOptions, config)
    count = at_least_one(options.kl_cov_ratio, int(batch.trained.sum()))
    return largest(covariance(batch), batch.keys, count).astype(np.float64)


def kl_cov_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Unclipped surrogate per token, with the penalty at the tokens that the mini-batch column marks."""
    options = read_options(KlCovOptions, config)
    log_ratios = log_ratio(inputs)
    marked = (whole_batch_column(inputs, config) > 0).to(log_ratios.dtype)
    penalty = (inputs.log_probs - inputs.old_log_probs).abs() * marked
    losses = -inputs.advantages * log_ratios.exp() + options.ppo_kl_coef * penalty
    return loss_result(losses, log_ratios, **{"actor/cov_fraction": marked})
