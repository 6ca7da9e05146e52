"""Which rows each rank computes, in which micro-batches: even work, and the same number of micro-batches everywhere.

Ranks that hold parts of one model meet in collectives in every micro-batch, so a rank with fewer of them would leave
the others waiting for ever (case E1). Every rank computes this plan by itself from the same batch: it must be a
function of the batch alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.modeling.microbatch import MicroBatchLimit, plan_micro_batches
from argosy.modeling.packing import prompt_keys
from argosy.types.ragged import Ragged

Rows = npt.NDArray[np.int64]

ENOUGH_BALANCE = 1.05
"""Stop cutting groups once the heaviest rank is within this factor of the mean: a cut costs the prompt once more."""
DENSE_PER_HIDDEN = 12.0
"""A token's matrix products cost about 24·E² operations a layer, and attending to one earlier token 2·E (E hidden size,
feed-forward 4·E, causal half): the token's cost is that of attending to 12·E others."""


@dataclass(frozen=True, slots=True)
class SequenceCost:
    """Work of forward and backward in units of one token's matrix products."""

    hidden_size: int

    def of(self, prompt: int, responses: Sequence[int]) -> float:
        """Cost of samples of one prompt that are packed together: n + Σ length² / (12·E).

        A shared prompt's rows are computed once, but each sample attends over its whole length.

        >>> SequenceCost(hidden_size=100).of(10, [5, 5])
        18.326666666666668
        """
        tails = [max(length - 1, 0) for length in responses]
        attention = sum((prompt + tail) ** 2 for tail in tails)
        return prompt + sum(tails) + attention / (DENSE_PER_HIDDEN * self.hidden_size)


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """One rank's part of a batch."""

    rows: Rows
    """Rows that are this rank's, ascending; may be none."""
    micro_batches: tuple[Rows, ...]
    """Row numbers of each forward pass. As many on every rank."""
    filler_count: int
    """So many of them, at the end, are fillers: a row of any rank, to be given no weight."""

    @property
    def weighted(self) -> list[tuple[Rows, float]]:
        """Each micro-batch, and 1 or (a filler) 0."""
        real = len(self.micro_batches) - self.filler_count
        return [(rows, 1.0 if place < real else 0.0) for place, rows in enumerate(self.micro_batches)]


def plan_ranks(
    prompts: Ragged, responses: Ragged, limit: MicroBatchLimit, rank_count: int, cost: SequenceCost
) -> list[RankPlan]:
    """Divide B rows over the ranks. An empty batch is no micro-batch on any rank.

    Raises InvalidInputError if one sequence alone is over the token budget.
    """
    return in_step(prompts, responses, divide(prompts, responses, rank_count, cost), limit)


def in_step(prompts: Ragged, responses: Ragged, parts: Sequence[Rows], limit: MicroBatchLimit) -> list[RankPlan]:
    """Micro-batches of given parts, however uneven: those with fewer get fillers (case E1)."""
    micro_batches = [_plan_part(prompts, responses, rows, limit) for rows in parts]
    count = max(len(planned) for planned in micro_batches)
    filler = [_shortest_row(prompts, responses)] if count else []
    plans = []
    for rows, planned in zip(parts, micro_batches, strict=True):
        fillers = filler * (count - len(planned))
        plans.append(RankPlan(rows, (*planned, *fillers), len(fillers)))
    return plans


def divide(prompts: Ragged, responses: Ragged, rank_count: int, cost: SequenceCost) -> list[Rows]:
    """Rows of each rank, about equal in cost; every row exactly once.

    Samples of one prompt stay together while that is even enough; then the group that costs most on the heaviest rank
    is cut in two, as long as that makes the heaviest rank lighter.
    """
    groups: dict[bytes, list[int]] = {}
    for row, key in enumerate(prompt_keys(prompts)):
        groups.setdefault(key, []).append(row)
    pieces = list(groups.values())

    def piece_cost(rows: Sequence[int]) -> float:
        return cost.of(len(prompts[rows[0]]), [len(responses[row]) for row in rows])

    best = _shared_out(pieces, [piece_cost(rows) for rows in pieces], rank_count)
    for _ in range(len(prompts)):
        heaviest = max(best, key=lambda part: part.load)
        cuttable = [piece for piece in heaviest.items if len(pieces[piece]) > 1]
        if not cuttable or heaviest.load <= ENOUGH_BALANCE * sum(part.load for part in best) / rank_count:
            break
        largest = max(cuttable, key=lambda piece: (piece_cost(pieces[piece]), -piece))
        halves = _halved(pieces[largest], responses)
        cut = [rows for piece, rows in enumerate(pieces) if piece != largest] + halves
        found = _shared_out(cut, [piece_cost(rows) for rows in cut], rank_count)
        if max(part.load for part in found) >= heaviest.load:
            break
        pieces, best = cut, found
    return [np.asarray(sorted(row for piece in part.items for row in pieces[piece]), np.int64) for part in best]


def _halved(rows: Sequence[int], responses: Ragged) -> list[list[int]]:
    """One group's rows in two halves of about equal response length, each in the group's order."""
    lengths = [float(len(responses[row])) for row in rows]
    return [[rows[item] for item in sorted(part.items)] for part in karmarkar_karp(lengths, 2)]


@dataclass(frozen=True, slots=True)
class Part:
    """Items that one rank gets."""

    load: float
    items: tuple[int, ...]


def _shared_out(pieces: Sequence[Any], costs: Sequence[float], rank_count: int) -> list[Part]:
    return karmarkar_karp(costs, rank_count) if pieces else [Part(0.0, ())] * rank_count


def karmarkar_karp(costs: Sequence[float], part_count: int) -> list[Part]:
    """Divide items into parts of about equal sums by the largest differencing method (Karmarkar & Karp 1982).

    Each item begins as a partition of its own, with all other parts empty. The two partitions with the largest spread
    are merged, heaviest part with lightest, until one is left. O(n·k·log) for n items and k parts; ties are broken by
    the items' order, so that every rank finds the same.

    >>> [part.items for part in karmarkar_karp([8, 7, 6, 5, 4], 2)]
    [(1, 3, 4), (0, 2)]
    """
    order = itertools.count()
    heap: list[tuple[float, int, list[Part]]] = []

    def push(parts: list[Part]) -> None:
        parts.sort(key=lambda part: (-part.load, part.items))
        heapq.heappush(heap, (parts[-1].load - parts[0].load, next(order), parts))

    for item, load in enumerate(costs):
        push([Part(float(load), (item,))] + [Part(0.0, ())] * (part_count - 1))
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        push([Part(a.load + b.load, a.items + b.items) for a, b in zip(first, reversed(second), strict=True)])
    found = heap[0][2] if heap else [Part(0.0, ())] * part_count
    return [Part(part.load, tuple(sorted(part.items))) for part in found]


def _plan_part(prompts: Ragged, responses: Ragged, rows: Rows, limit: MicroBatchLimit) -> list[Rows]:
    """Micro-batches of some rows, as row numbers of the whole batch."""
    return [rows[part] for part in plan_micro_batches(prompts.take(rows), responses.take(rows), limit)]


def _shortest_row(prompts: Ragged, responses: Ragged) -> Rows:
    """The cheapest row that a filler can compute, and one with a response: it must run through the whole network."""
    lengths = prompts.lengths + responses.lengths
    lengths = np.where(responses.lengths > 0, lengths, lengths.max() + 1)
    return np.asarray([int(np.argmin(lengths))], np.int64)
