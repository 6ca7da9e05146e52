"""What every policy loss takes and gives: flat tensors over tokens, whatever sequences they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from argosy.algorithms.aggregation import TokenLayout
from argosy.types.records import LossConfig

LOG_RATIO_LIMIT = 20.0
"""|log π - log π_old| that enters an exponential: e^20 is far beyond any clip range and stays finite in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyLossInputs:
    """N response tokens."""

    log_probs: Tensor
    """[N], with gradient."""
    old_log_probs: Tensor
    """[N], of the policy before the update."""
    advantages: Tensor
    """[N]."""
    layout: TokenLayout
    """Mask and owner sequence of each token, for losses that act on whole sequences."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyLossResult:
    """Not yet masked, not yet aggregated."""

    losses: Tensor
    """[N]."""
    token_metrics: Mapping[str, Tensor]
    """Metric name → per-token values [N], to be averaged over the trained tokens of the global mini-batch."""


PolicyLoss = Callable[[PolicyLossInputs, LossConfig], PolicyLossResult]
