"""What every policy loss takes and gives: flat tensors over tokens, whatever sequences they belong to.

Letters: N response tokens of a micro-batch, B its sequences; r = π/π_old, A the advantage, sg[·] a value whose gradient
is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from argosy.algorithms.aggregation import TokenLayout
from argosy.types.errors import InvalidInputError
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
    mini_batch_column: Tensor | None = None
    """[N], what a loss of `WHOLE_BATCH` must know of the whole mini-batch (mini_batch.py); None for the others."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyLossResult:
    """Not yet masked, not yet aggregated."""

    losses: Tensor
    """[N]."""
    token_metrics: Mapping[str, Tensor]
    """Metric name → per-token values [N], to be averaged over the trained tokens of the global mini-batch."""


PolicyLoss = Callable[[PolicyLossInputs, LossConfig], PolicyLossResult]


def log_ratio(inputs: PolicyLossInputs) -> Tensor:
    """log r [N] with gradient, within ±LOG_RATIO_LIMIT; beyond it the gradient is 0."""
    return (inputs.log_probs - inputs.old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sequence_mean(values: Tensor, layout: TokenLayout) -> Tensor:
    """Mean of values [N] over each sequence's trained tokens, [B]; 0 for a sequence without any."""
    kept = torch.where(layout.mask > 0, values, values.new_zeros(()))
    mask = layout.mask.to(values.dtype)
    sums = values.new_zeros(layout.sequence_count).index_add(0, layout.owner, kept)
    counts = values.new_zeros(layout.sequence_count).index_add(0, layout.owner, mask)
    return sums / counts.clamp(min=1.0)


def whole_batch_column(inputs: PolicyLossInputs, config: LossConfig) -> Tensor:
    """The mini-batch column. Raises InvalidInputError if it wasn't made."""
    if inputs.mini_batch_column is None:
        raise InvalidInputError(
            f"policy_loss.loss_mode={config.loss_mode} needs statistics of the whole mini-batch, but this part of one "
            "came without them: send the mini-batch in one call, or use Update"
        )
    return inputs.mini_batch_column


def loss_result(
    losses: Tensor,
    log_ratios: Tensor,
    clipped: Tensor | None = None,
    clipped_lower: Tensor | None = None,
    **others: Tensor,
) -> PolicyLossResult:
    """The losses with the metrics that every mode has, all [N].

    Args:
        losses: [N].
        log_ratios: log π - log π_old, for actor/ppo_kl = -log r, the k1 estimate of KL(old ‖ new).
        clipped: Where the bound cuts the gradient; None = nowhere.
        clipped_lower: Where the second bound of the mode does; None = the mode has none.
        others: Further metrics by full name.
    """
    none = torch.zeros_like(losses)
    metrics = {
        "actor/pg_clipfrac": none if clipped is None else clipped,
        "actor/pg_clipfrac_lower": none if clipped_lower is None else clipped_lower,
        "actor/ppo_kl": -log_ratios,
        **others,
    }
    return PolicyLossResult(losses, {name: value.detach().to(losses.dtype) for name, value in metrics.items()})


def check_clip_range(config: LossConfig) -> None:
    """Raise InvalidInputError on a negative clip bound."""
    if config.clip_ratio_low < 0 or config.clip_ratio_high < 0:
        raise InvalidInputError(
            f"clip ratios must not be negative, got low {config.clip_ratio_low}, high {config.clip_ratio_high}"
        )


def check_ratio_bound(config: LossConfig) -> None:
    """Raise InvalidInputError unless clip_ratio_c is above 1."""
    if not config.clip_ratio_c > 1.0:
        raise InvalidInputError(f"clip_ratio_c must be above 1, got {config.clip_ratio_c}")
