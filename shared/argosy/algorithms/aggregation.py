"""Token losses → one number, normalised over the global mini-batch.

Every mode is a sum over tokens with a weight that depends only on the token's own sequence and on the *global*
denominators. Shares of micro-batches and ranks therefore add up to exactly the loss of the whole mini-batch (case B4);
averaging each micro-batch by its own token count would not.

Dimension letters: N tokens of this share, B sequences of this share. L loss, m mask, s sequence.

    token-mean             Σ L·m / tokens                           (DAPO, arXiv:2503.14476, eq. 8)
    seq-mean-token-sum     Σ_s Σ_t L·m / sequences
    seq-mean-token-mean    Σ_s (Σ_t L·m / Σ_t m) / sequences        (GRPO, arXiv:2402.03300, eq. 3)
    seq-mean-token-sum-norm  Σ_s Σ_t L·m / (sequences · constant)   (Dr.GRPO, arXiv:2503.20783, §3.2)

"sequences" are those with a trained token. verl divides by all rows, so there a response that nobody could judge, or
whose tokens were all rejected, shrinks the loss of the others (case B5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from argosy.types.errors import InvalidInputError
from argosy.types.records import GlobalNormalizer


@dataclass(frozen=True, slots=True, eq=False)
class TokenLayout:
    """Which tokens count, and whose they are."""

    mask: Tensor
    """[N] float: 1 = sampled by the policy and trained."""
    owner: Tensor
    """[N] int64: the sequence of each token, 0…B-1. A sequence is never spread over micro-batches."""
    sequence_count: int
    """B."""


def aggregate(
    losses: Tensor, layout: TokenLayout, mode: str, normalizer: GlobalNormalizer, scale_factor: float | None = None
) -> Tensor:
    """This share of the global mini-batch's loss, a scalar.

    Args:
        losses: [N]. Values where the mask is 0 are ignored, NaN included.
        layout: The tokens of this share.
        mode: A key of AGGREGATIONS.
        normalizer: Denominators over the global mini-batch. With nothing trained the result is a 0 that still
            backpropagates (case B5).
        scale_factor: The constant of "seq-mean-token-sum-norm".
    """
    if mode not in AGGREGATIONS:
        raise InvalidInputError(f"unknown loss_agg_mode {mode!r}; known: {', '.join(AGGREGATIONS)}")
    weights = AGGREGATIONS[mode](layout, normalizer, scale_factor)
    return (torch.where(layout.mask > 0, losses, losses.new_zeros(())) * weights.to(losses.dtype)).sum()


def _token_mean(layout: TokenLayout, normalizer: GlobalNormalizer, scale_factor: float | None) -> Tensor:
    return layout.mask / max(normalizer.token_count, 1.0)


def _sequence_mean_token_sum(layout: TokenLayout, normalizer: GlobalNormalizer, scale_factor: float | None) -> Tensor:
    return layout.mask / max(normalizer.sequence_count, 1.0)


def _sequence_mean_token_mean(layout: TokenLayout, normalizer: GlobalNormalizer, scale_factor: float | None) -> Tensor:
    lengths = layout.mask.new_zeros(layout.sequence_count).index_add(0, layout.owner, layout.mask)  # [B]
    return layout.mask / lengths.clamp(min=1.0)[layout.owner] / max(normalizer.sequence_count, 1.0)


def _sequence_mean_token_sum_norm(
    layout: TokenLayout, normalizer: GlobalNormalizer, scale_factor: float | None
) -> Tensor:
    if scale_factor is None or not scale_factor > 0:
        raise InvalidInputError(
            f"seq-mean-token-sum-norm needs a positive loss_scale_factor (max_response_length), got {scale_factor}"
        )
    return layout.mask / (max(normalizer.sequence_count, 1.0) * scale_factor)


Weighting = Callable[[TokenLayout, GlobalNormalizer, float | None], Tensor]

AGGREGATIONS: dict[str, Weighting] = {
    "token-mean": _token_mean,
    "seq-mean-token-sum": _sequence_mean_token_sum,
    "seq-mean-token-mean": _sequence_mean_token_mean,
    "seq-mean-token-sum-norm": _sequence_mean_token_sum_norm,
}
"""loss_agg_mode → the weight [N] of each token."""
