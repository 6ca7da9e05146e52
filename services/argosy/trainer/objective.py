"""The objective of one micro-batch, as its share of the global mini-batch's value.

Of a policy: policy loss + β·KL - c·entropy (`objective`). Of a critic: the clipped squared error (`value_objective`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from argosy.algorithms.aggregation import AGGREGATIONS, TokenLayout, aggregate
from argosy.algorithms.kl import check_kl_type, kl_estimate
from argosy.algorithms.losses import PolicyLossInputs, check_options, get_loss
from argosy.algorithms.losses.options import read_options
from argosy.algorithms.values import LOSS_MODE as VALUE_MODE
from argosy.algorithms.values import ValueOptions, value_loss
from argosy.modeling.log_probs import TokenStats
from argosy.modeling.packed_model import check_temperature
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.records import GlobalNormalizer, LossConfig

ZERO_AT_ZERO_ADVANTAGE = frozenset(
    {"vanilla", "gspo", "sapo", "gpg", "clip_cov", "geo_mean", "cispo", "dppo_tv", "dppo_kl", "bypass_mode"}
)
"""Loss modes whose loss and gradient are exactly 0 in a sequence whose advantages are all 0. The penalties of kl_cov
and dro stay."""

NEEDS_OLD_LOG_PROBS = frozenset({"bypass_mode"})
"""Loss modes that are something else without the column old_log_probs, here the sampling policy's log-probs."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """What the controller sent for M response tokens, on the device."""

    advantages: Tensor
    mask: Tensor
    old_log_probs: Tensor | None
    """None: the weights are still those that sampled, so the log-probs are their own old ones (ratio exactly 1)."""
    ref_log_probs: Tensor | None
    rollout_is_weights: Tensor | None = None
    """Multiplies the policy loss of each token (not its KL or entropy): rollout correction. None is 1."""
    mini_batch_column: Tensor | None = None
    """What the loss mode knows of the whole mini-batch, see `argosy.trainer.selection`."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueColumns:
    """What the controller sent a critic for M response tokens, on the device."""

    returns: Tensor
    mask: Tensor
    old_values: Tensor | None
    """None: the values that are trained are still their own old ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """Shares of the global mini-batch: they add up over micro-batches."""

    loss: Tensor
    """Scalar with gradient."""
    metrics: Mapping[str, Tensor]
    """Scalars: actor/loss, actor/pg_loss, …"""
    token_metrics: Mapping[str, Tensor]
    """Scalars: sums over this share's trained tokens, to be divided by a token count."""


def objective(
    stats: TokenStats, columns: TokenColumns, owner: Tensor, count: int, loss: LossConfig, normalizer: GlobalNormalizer
) -> Objective:
    """Policy loss + kl_loss_coef · KL - entropy_coeff · entropy, each aggregated by loss_agg_mode.

    Args:
        stats: Of the M response tokens, under the weights being trained.
        columns: Of the same tokens.
        owner: [M] int64, each token's sequence in 0…count-1.
        count: Sequences of the micro-batch.
        loss: Names and coefficients.
        normalizer: Denominators of the global mini-batch.
    """
    layout = TokenLayout(columns.mask, owner, count)
    detached = stats.log_probs.detach()

    def trained(values: Tensor | None) -> Tensor:
        # Whatever lies at untrained tokens (NaN, -inf) must not reach the gradient: 0 · NaN is NaN.
        return detached if values is None else torch.where(columns.mask > 0, values.to(detached.dtype), detached)

    def share(values: Tensor) -> Tensor:
        return aggregate(values, layout, loss.loss_agg_mode, normalizer, loss.loss_scale_factor)

    advantages = torch.where(columns.mask > 0, columns.advantages, columns.advantages.new_zeros(()))
    inputs = PolicyLossInputs(
        stats.log_probs,
        trained(columns.old_log_probs),
        advantages.to(detached.dtype),
        layout,
        columns.mini_batch_column,
    )
    policy = get_loss(loss.loss_mode)(inputs, loss)
    losses = policy.losses
    if columns.rollout_is_weights is not None:
        losses = losses * torch.where(columns.mask > 0, columns.rollout_is_weights.to(losses.dtype), 0.0)
    total = policy_share = share(losses)
    metrics = {"actor/pg_loss": policy_share}
    if loss.use_kl_loss:
        kl = share(kl_estimate(stats.log_probs, trained(columns.ref_log_probs), loss.kl_loss_type))
        total = total + loss.kl_loss_coef * kl
        metrics["actor/kl_loss"] = kl
    token_metrics = dict(policy.token_metrics)
    if stats.entropy is not None:
        token_metrics["actor/entropy"] = stats.entropy
        if loss.entropy_coeff != 0.0:
            total = total - loss.entropy_coeff * share(stats.entropy)
    metrics["actor/loss"] = total
    sums = {name: (values.detach() * columns.mask).sum() for name, values in token_metrics.items()}
    return Objective(total, {name: value.detach() for name, value in metrics.items()}, sums)


def value_objective(
    values: Tensor, columns: ValueColumns, owner: Tensor, count: int, loss: LossConfig, normalizer: GlobalNormalizer
) -> Objective:
    """Clipped value loss, aggregated by loss_agg_mode: a critic's whole objective.

    Args:
        values: [M], with gradient, under the weights being trained.
        columns: Of the same tokens.
        owner: [M] int64, each token's sequence in 0…count-1.
        count: Sequences of the micro-batch.
        loss: loss_mode "value", options of `argosy.algorithms.values.ValueOptions`.
        normalizer: Denominators of the global mini-batch.
    """
    layout = TokenLayout(columns.mask, owner, count)
    detached = values.detach()

    def trained(given: Tensor | None) -> Tensor:
        return detached if given is None else torch.where(columns.mask > 0, given.to(detached.dtype), detached)

    result = value_loss(values, trained(columns.old_values), trained(columns.returns), loss)
    total = aggregate(result.losses, layout, loss.loss_agg_mode, normalizer, loss.loss_scale_factor)
    sums = {name: (metric * columns.mask).sum() for name, metric in result.token_metrics.items()}
    return Objective(total, {"critic/vf_loss": total.detach()}, sums)


def check_loss(loss: LossConfig) -> None:
    """Refuse an objective with an unknown name or a senseless number, before anything is computed."""
    if loss.loss_mode == VALUE_MODE:
        read_options(ValueOptions, loss)
    else:
        check_options(loss)
    if loss.loss_agg_mode not in AGGREGATIONS:
        raise InvalidInputError(f"unknown loss_agg_mode {loss.loss_agg_mode!r}; known: {', '.join(AGGREGATIONS)}")
    if loss.use_kl_loss:
        check_kl_type(loss.kl_loss_type)
    check_temperature(loss.temperature)
    if loss.loss_agg_mode == "seq-mean-token-sum-norm" and not (loss.loss_scale_factor or 0) > 0:
        raise InvalidInputError("seq-mean-token-sum-norm needs a positive loss_scale_factor (max_response_length)")


def check_columns(batch: TrajectoryBatch, loss: LossConfig) -> None:
    """Refuse a batch without a column that the policy's objective can't do without."""
    names = ["advantages"]
    names += ["ref_log_probs"] if loss.use_kl_loss else []
    names += ["old_log_probs"] if loss.loss_mode in NEEDS_OLD_LOG_PROBS else []
    for name in names:
        if not batch.has(name):
            raise InvalidInputError(f"the batch has no column {name!r}, which this loss needs", field=name)


def global_normalizer(batch: TrajectoryBatch) -> GlobalNormalizer:
    """Denominators of one mini-batch that is whole in this process."""
    mask = batch.ragged("response_mask")
    sums = mask.segment_sum()
    return GlobalNormalizer(float(sums.sum()), float((sums > 0).sum()))


def rows_with_gradient(batch: TrajectoryBatch, loss: LossConfig) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows that can move the weights; the others needn't be computed at all.

    A row without trained tokens never can. Where only the policy loss is used, neither can one whose advantages are all
    0, which is every sample of a group without spread.
    """
    mask = batch.ragged("response_mask")
    active = mask.values != 0
    if loss.loss_mode in ZERO_AT_ZERO_ADVANTAGE and not loss.use_kl_loss and loss.entropy_coeff == 0.0:
        active &= batch.ragged("advantages").values != 0.0
    owner = np.repeat(np.arange(len(batch)), mask.lengths)
    return np.flatnonzero(np.bincount(owner[active], minlength=len(batch)))
