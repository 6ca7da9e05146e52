"""DRO: a quadratic leash in place of a clip (Richemond et al. 2024, "Offline Regularised Reinforcement Learning for
Large Language Models Alignment", arXiv:2405.19107, §3; in this policy-gradient form Kimi k1.5, arXiv:2501.12599,
§2.3.2).

    L = -(A · log π - β/2 · (log π - log π_old)²)

The papers state it for whole sequences; verl and we apply it to each token. verl has no default β and refuses to run
without one; here β defaults to DRO_BETA. The penalty stays where A = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.algorithms.losses.base import PolicyLossInputs, PolicyLossResult, loss_result
from argosy.algorithms.losses.options import read_options, require
from argosy.types.records import LossConfig

DRO_BETA = 0.05


@dataclass(frozen=True, slots=True)
class DroOptions:
    """Read from LossConfig.options."""

    dro_beta: float = DRO_BETA
    """β."""

    def __post_init__(self) -> None:
        require("dro_beta", self.dro_beta, 0.0, low_open=True)


def dro_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Policy gradient with a squared log-ratio penalty, per token."""
    beta = read_options(DroOptions, config).dro_beta
    difference = inputs.log_probs - inputs.old_log_probs
    losses = 0.5 * beta * difference.square() - inputs.advantages * inputs.log_probs
    return loss_result(losses, difference)
