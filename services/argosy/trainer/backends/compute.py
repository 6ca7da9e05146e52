"""What one micro-batch computes, apart from where it runs: every backend uses the same.

A backend decides which rows a rank gets and in which micro-batches; a `Compute` does forward, objective and backward of
the rows it is given, and returns their shares of the metrics. Shares add up over micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from argosy.algorithms.agreement import rollout_agreement
from argosy.algorithms.losses.mini_batch import COLUMN
from argosy.algorithms.values import LOSS_MODE as VALUE_MODE
from argosy.modeling.packed_model import PackedModel, token_places
from argosy.modeling.packing import pack
from argosy.modeling.value_model import VALUE_COLUMN, PackedValueModel
from argosy.trainer.objective import (
    Objective,
    TokenColumns,
    ValueColumns,
    check_columns,
    objective,
    rows_with_gradient,
    value_objective,
)
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.records import GlobalNormalizer, LossConfig

RETURNS_COLUMN = "returns"
"""What a critic is trained on, one float32 per response token."""

Rows = np.ndarray[Any, Any]
Gather = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
"""One rank's array [n] → those of all ranks, joined. A rank that is alone gets its own back."""


class Compute(Protocol):
    """The objective of one kind of trainer: policy or value."""

    def check(self, batch: TrajectoryBatch, loss: LossConfig) -> None:
        """Refuse a batch that lacks a column, or would crash deep inside."""
        ...

    def active_rows(self, batch: TrajectoryBatch, loss: LossConfig) -> Rows:
        """Rows that can move the weights; the others needn't be computed."""
        ...

    def begin(self) -> None:
        """A new forward_backward: forget what was collected."""
        ...

    def micro_batch(
        self,
        batch: TrajectoryBatch,
        rows: Rows,
        loss: LossConfig,
        normalizer: GlobalNormalizer,
        token_weight: float,
        loss_scale: float = 1.0,
    ) -> dict[str, float]:
        """Forward and backward of some rows; returns their shares of the metrics.

        `token_weight` lets the computed tokens speak for those that were left out, in per-token averages. `loss_scale`
        multiplies what is backpropagated only: the number of data-parallel ranks where a backend averages gradients
        over ranks, 0 for a filler that only keeps ranks in step (case E1).
        """
        ...

    def collected(self, gather: Gather = lambda array: array) -> dict[str, float]:
        """Metrics of the forward_backward as a whole, over all ranks' rows: every rank calls this."""
        ...


class PolicyCompute:
    """Log-probs, policy loss, KL and entropy. Implements `Compute`."""

    def __init__(self, model: PackedModel, *, report_entropy: bool = False) -> None:
        self._model = model
        self._report_entropy = report_entropy
        self._agreement = _Agreement()

    def check(self, batch: TrajectoryBatch, loss: LossConfig) -> None:
        """Columns that the loss reads, and ids that the model knows."""
        check_columns(batch, loss)
        self._model.check(batch)

    def active_rows(self, batch: TrajectoryBatch, loss: LossConfig) -> Rows:
        """As `rows_with_gradient`."""
        return rows_with_gradient(batch, loss)

    def begin(self) -> None:
        """Forget the agreement collected before."""
        self._agreement = _Agreement()

    def micro_batch(
        self,
        batch: TrajectoryBatch,
        rows: Rows,
        loss: LossConfig,
        normalizer: GlobalNormalizer,
        token_weight: float,
        loss_scale: float = 1.0,
    ) -> dict[str, float]:
        """As `Compute` says."""
        device = self._model.device
        packed = pack(batch.ragged("prompt_ids").take(rows), batch.ragged("response_ids").take(rows), device=device)
        stats = self._model.response_stats(
            packed,
            temperature=loss.temperature,
            entropy=loss.entropy_coeff != 0.0 or self._report_entropy,
        )
        columns = token_columns(batch, rows, loss, device)
        result = objective(stats, columns, packed.owner, packed.sequence_count, loss, normalizer)
        if loss_scale != 0.0:
            self._agreement.add(batch, rows, columns, stats.log_probs.detach())
        (result.loss * loss_scale).backward()  # type: ignore[no-untyped-call]
        if loss_scale == 0.0:
            return {}
        return _shares(result, normalizer, token_weight)

    def collected(self, gather: Gather = lambda array: array) -> dict[str, float]:
        """training/rollout_probs_diff_*."""
        return self._agreement.metrics(gather)


class ValueCompute:
    """Values and the clipped squared error: a critic's. Implements `Compute`.

    Reads the columns "returns" and, but for the first optimizer step of an update, "values": those before the update.
    """

    def __init__(self, model: PackedValueModel) -> None:
        self._model = model

    def check(self, batch: TrajectoryBatch, loss: LossConfig) -> None:
        """Columns that the loss reads, and ids that the model knows."""
        if loss.loss_mode != VALUE_MODE:
            raise InvalidInputError(
                f"a trainer with a value head has the loss_mode {VALUE_MODE!r}, got {loss.loss_mode!r}",
                field="loss_mode",
            )
        if not batch.has(RETURNS_COLUMN):
            raise InvalidInputError(
                f"the batch has no column {RETURNS_COLUMN!r}, which this loss needs", field=RETURNS_COLUMN
            )
        self._model.check(batch)

    def active_rows(self, batch: TrajectoryBatch, loss: LossConfig) -> Rows:
        """As `rows_with_gradient`: those with a trained token."""
        return rows_with_gradient(batch, loss)

    def begin(self) -> None:
        """Nothing is collected."""

    def micro_batch(
        self,
        batch: TrajectoryBatch,
        rows: Rows,
        loss: LossConfig,
        normalizer: GlobalNormalizer,
        token_weight: float,
        loss_scale: float = 1.0,
    ) -> dict[str, float]:
        """As `Compute` says."""
        device = self._model.device
        packed = pack(batch.ragged("prompt_ids").take(rows), batch.ragged("response_ids").take(rows), device=device)
        values = self._model.response_values(packed)
        result = value_objective(
            values, value_columns(batch, rows, device), packed.owner, packed.sequence_count, loss, normalizer
        )
        (result.loss * loss_scale).backward()  # type: ignore[no-untyped-call]
        return {} if loss_scale == 0.0 else _shares(result, normalizer, token_weight)

    def collected(self, gather: Gather = lambda array: array) -> dict[str, float]:
        """None."""
        return {}


Plan = Callable[[TrajectoryBatch], Iterable[tuple[Rows, float]]]
"""A batch → the micro-batches of this process, each with its loss scale."""


def accumulate(
    compute: Compute, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer, plan: Plan
) -> dict[str, float]:
    """Forward and backward of every planned micro-batch; returns the sums of their shares of the metrics.

    The sum of the gradients doesn't depend on how the batch was cut (case B4).
    """
    compute.check(batch, loss)
    compute.begin()
    trained = float(batch.ragged("response_mask").values.sum())
    batch = batch.select(compute.active_rows(batch, loss))
    computed = float(batch.ragged("response_mask").values.sum())
    totals: dict[str, float] = {}
    for rows, loss_scale in plan(batch):
        shares = compute.micro_batch(batch, rows, loss, normalizer, trained / computed, loss_scale)
        for name, value in shares.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def _shares(result: Objective, normalizer: GlobalNormalizer, token_weight: float) -> dict[str, float]:
    """A micro-batch's shares of the metrics: token metrics are averages over the mini-batch's trained tokens."""
    scale = token_weight / max(normalizer.token_count, 1.0)
    shares = {name: float(value) for name, value in result.metrics.items()}
    return shares | {name: float(value) * scale for name, value in result.token_metrics.items()}


class _Agreement:
    """Collects what the rollout reported and what the trainer computes, while both mean the same weights.

    That is so only in the first pass over fresh samples, when there are no separate old log-probs; otherwise the
    controller compares those.
    """

    def __init__(self) -> None:
        self._trainer: list[Tensor] = []
        self._rollout: list[np.ndarray[Any, Any]] = []

    def add(self, batch: TrajectoryBatch, rows: Rows, columns: TokenColumns, log_probs: Tensor) -> None:
        """One micro-batch: `log_probs` are of its response tokens, in the rows' order."""
        if columns.old_log_probs is not None or not batch.has("rollout_log_probs"):
            return
        trained = (columns.mask > 0).cpu()
        places = token_places(batch.ragged("response_ids"), rows)
        self._trainer.append(log_probs.float().cpu()[trained])
        self._rollout.append(batch.ragged("rollout_log_probs").values[places][trained.numpy()])

    def metrics(self, gather: Gather) -> dict[str, float]:
        """training/rollout_probs_diff_* and the correlation; empty if nothing was collected."""
        none = np.zeros(0, np.float32)
        trainer = torch.cat(self._trainer).numpy() if self._trainer else none
        rollout = np.concatenate(self._rollout) if self._rollout else none
        return rollout_agreement(gather(trainer), gather(rollout))


def token_columns(batch: TrajectoryBatch, rows: Rows, loss: LossConfig, device: torch.device) -> TokenColumns:
    """The rows' response-token columns, end to end in the rows' order."""
    places = token_places(batch.ragged("response_ids"), rows)

    def column(name: str) -> Tensor:
        return torch.from_numpy(batch.ragged(name).values[places].astype(np.float32)).to(device)

    return TokenColumns(
        advantages=column("advantages"),
        mask=column("response_mask"),
        old_log_probs=column("old_log_probs") if batch.has("old_log_probs") else None,
        ref_log_probs=column("ref_log_probs") if loss.use_kl_loss else None,
        rollout_is_weights=column("rollout_is_weights") if batch.has("rollout_is_weights") else None,
        mini_batch_column=column(COLUMN) if batch.has(COLUMN) else None,
    )


def value_columns(batch: TrajectoryBatch, rows: Rows, device: torch.device) -> ValueColumns:
    """The rows' columns for a critic, end to end in the rows' order."""
    places = token_places(batch.ragged("response_ids"), rows)

    def column(name: str) -> Tensor:
        return torch.from_numpy(batch.ragged(name).values[places].astype(np.float32)).to(device)

    return ValueColumns(
        returns=column(RETURNS_COLUMN),
        mask=column("response_mask"),
        old_values=column(VALUE_COLUMN) if batch.has(VALUE_COLUMN) else None,
    )
