"""What data-parallel ranks do alike, whatever cuts their model: rows of one's own, and the same number of passes.

Every rank calls the same methods with the same arguments, and computes the rows that are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import distributed

from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.packed_network import PackedNetwork
from argosy.trainer.backends.compute import Compute, Rows, accumulate
from argosy.trainer.ranks.partition import RankPlan, SequenceCost, plan_ranks
from argosy.types.batch import TrajectoryBatch
from argosy.types.ragged import Ragged
from argosy.types.records import GlobalNormalizer, LossConfig


@dataclass(frozen=True, slots=True, eq=False)
class DataParallel:
    """One rank's place among those that divide a batch between them."""

    group: distributed.ProcessGroup
    """Ranks that hold other rows."""
    cost: SequenceCost
    speaks: bool = True
    """Whether this rank reports for those that compute the same rows (tensor and sequence ranks)."""
    loss_share: float = 1.0
    """This rank's share in the gradient of its rows: below 1 where several compute the same loss and are summed."""

    @property
    def size(self) -> int:
        """Parts that a batch is divided into."""
        return distributed.get_world_size(self.group)

    def plan(self, batch: TrajectoryBatch, limit: MicroBatchLimit) -> RankPlan:
        """This rank's rows and micro-batches."""
        prompts, responses = batch.ragged("prompt_ids"), batch.ragged("response_ids")
        return plan_ranks(prompts, responses, limit, self.size, self.cost)[distributed.get_rank(self.group)]

    def forward_backward(
        self,
        compute: Compute,
        batch: TrajectoryBatch,
        loss: LossConfig,
        normalizer: GlobalNormalizer,
        limit: MicroBatchLimit,
    ) -> dict[str, float]:
        """This rank's rows; fillers keep it in step with ranks that have more micro-batches (case E1).

        Returns shares of the metrics that add up over all ranks.
        """

        def plan(part: TrajectoryBatch) -> list[tuple[Rows, float]]:
            return [(rows, weight * self.loss_share) for rows, weight in self.plan(part, limit).weighted]

        totals = accumulate(compute, batch, loss, normalizer, plan)
        collected = compute.collected(self.gather_arrays)
        if distributed.get_rank() == 0:
            totals |= collected  # of all ranks' rows, so it is one rank's to tell
        return totals if self.speaks else {}

    def evaluate(
        self,
        model: PackedNetwork,
        batch: TrajectoryBatch,
        columns: Sequence[str],
        temperature: float,
        limit: MicroBatchLimit,
        cancelled: Callable[[], bool],
    ) -> TrajectoryBatch:
        """This rank's rows with the columns, in the batch's order; rank 0 adds the rows that have no response."""
        model.check(batch)
        lengths = batch.ragged("response_ids").lengths
        filled, empty = np.flatnonzero(lengths), np.flatnonzero(lengths == 0)
        part = batch.select(filled)  # a row without response would not reach the network, and the others would wait
        plan = self.plan(part, limit)
        answer = model.evaluate(
            part,
            columns,
            temperature=temperature,
            limit=limit,
            cancelled=lambda: agreed(cancelled()),
            plan=plan.micro_batches,
        )
        own = answer.select(plan.rows if self.speaks else [])
        if distributed.get_rank() != 0:
            return own
        return _with_empty_rows(batch, own, filled[plan.rows], empty, columns)

    def gather_arrays(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The arrays [n] of all data ranks, joined; on each of them."""
        if self.size == 1:
            return array
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[distributed.get_rank(self.group)] = len(array)
        distributed.all_reduce(counts, group=self.group)
        padded = torch.zeros(int(counts.max()), dtype=torch.float64)
        padded[: len(array)] = torch.from_numpy(np.asarray(array, np.float64))
        found = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(found, padded, group=self.group)
        pieces = [piece[: int(count)].numpy() for piece, count in zip(found, counts, strict=True)]
        joined: np.ndarray[Any, Any] = np.concatenate(pieces).astype(array.dtype)
        return joined


def agreed(stop: bool) -> bool:
    """Whether any rank of the world wants to stop; all of them do then."""
    if distributed.get_world_size() == 1:
        return stop
    flag = torch.tensor([float(stop)])
    distributed.all_reduce(flag)
    return bool(flag.item() > 0)


def _with_empty_rows(
    batch: TrajectoryBatch,
    computed: TrajectoryBatch,
    rows: np.ndarray[Any, Any],
    empty: np.ndarray[Any, Any],
    columns: Sequence[str],
) -> TrajectoryBatch:
    """`computed` (the batch's `rows`) and the rows without response, in the batch's order."""
    order = np.concatenate([rows, empty]).astype(np.int64)
    places = np.argsort(order)
    kept = batch.select(order[places])
    kept = TrajectoryBatch(kept.table.select(["sample_id", "prompt_ids", "response_ids", "response_mask"]))
    for name in columns:
        values = [*computed.ragged(name), *[np.zeros(0, np.float32)] * len(empty)]
        kept = kept.with_column(name, Ragged.from_rows([values[place] for place in places], np.float32))
    return kept
