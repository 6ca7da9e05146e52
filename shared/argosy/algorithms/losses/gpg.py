"""GPG: the plain policy gradient (Chu et al. 2025, "GPG: A Simple and Strong Reinforcement Learning Baseline",
arXiv:2504.02546, §3).

    L = -A · log π

There is no ratio, so it is for fresh samples: one optimizer step per batch. Its own advantages are
`advantages/gpg.py`.
"""

from __future__ import annotations

from argosy.algorithms.losses.base import PolicyLossInputs, PolicyLossResult, log_ratio, loss_result
from argosy.types.records import LossConfig


def gpg_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Advantage-weighted negative log-likelihood per token."""
    return loss_result(-inputs.advantages * inputs.log_probs, log_ratio(inputs))
