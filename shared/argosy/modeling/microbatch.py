"""Cutting a batch into micro-batches that fit the memory, without changing any result.

A micro-batch is a list of row numbers of the batch. Samples of one prompt stay together where they can, because packing
computes a shared prompt once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from argosy.modeling.packing import prompt_keys
from argosy.types.errors import InvalidInputError
from argosy.types.ragged import Ragged

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MicroBatchLimit:
    """How large one forward pass may be. Exactly one of the two limits is used; `max_tokens` wins when both are set."""

    max_tokens: int | None = None
    """Most packed tokens (verl's ppo_max_token_len_per_gpu with use_dynamic_bsz); a shared prompt counts once."""
    max_sequences: int | None = None
    """Most sequences (verl's ppo_micro_batch_size_per_gpu)."""

    @classmethod
    def by_verls_rule(cls, sequences: int | None, dynamic: bool, tokens: int) -> MicroBatchLimit:
        """By sequences if a micro-batch size is given and use_dynamic_bsz is off, else by tokens."""
        if sequences is not None and not dynamic:
            return cls(max_sequences=sequences)
        return cls(max_tokens=tokens)

    def __post_init__(self) -> None:
        for name, value in (("max_tokens", self.max_tokens), ("max_sequences", self.max_sequences)):
            if value is not None and value < 1:
                raise InvalidInputError(f"a micro-batch's {name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Samples of one prompt that go together, and the packed tokens that they take."""

    rows: tuple[int, ...]
    cost: int


def plan_micro_batches(prompts: Ragged, responses: Ragged, limit: MicroBatchLimit) -> list[Rows]:
    """Cut B sequences into micro-batches of row numbers: every row exactly once, in a repeatable order.

    Raises InvalidInputError if one sequence alone is over the token budget.
    """
    groups = _groups(prompts)
    if limit.max_tokens is not None:
        return _by_tokens(prompts, responses, groups, limit.max_tokens)
    order = np.asarray([row for rows in groups for row in rows], np.int64)
    if limit.max_sequences is None:
        return [order] if len(order) else []
    count = -(-len(order) // limit.max_sequences)
    return list(np.array_split(order, count)) if count else []


def _groups(prompts: Ragged) -> list[list[int]]:
    """Rows with equal prompts, groups in order of first appearance."""
    found: dict[bytes, list[int]] = {}
    for row, key in enumerate(prompt_keys(prompts)):
        found.setdefault(key, []).append(row)
    return list(found.values())


def _by_tokens(prompts: Ragged, responses: Ragged, groups: list[list[int]], budget: int) -> list[Rows]:
    """As few micro-batches as fit the budget, of about equal size: k = ⌈Σ cost / budget⌉, raised until all fit."""
    pieces = [piece for rows in groups for piece in _pieces(prompts, responses, rows, budget)]
    if not pieces:
        return []
    count = -(-sum(piece.cost for piece in pieces) // budget)
    while (bins := _balance(pieces, count, budget)) is None:
        count += 1
    return [np.asarray(sorted(rows), np.int64) for rows in sorted(bins, key=min)]


def _pieces(prompts: Ragged, responses: Ragged, rows: list[int], budget: int) -> list[_Piece]:
    """Cut one group, in order, into pieces within the budget; each piece pays for the prompt again."""
    prompt_cost = len(prompts[rows[0]])
    pieces: list[_Piece] = []
    current: list[int] = []
    cost = prompt_cost
    for row in rows:
        tail = max(len(responses[row]) - 1, 0)
        if prompt_cost + tail > budget:
            raise InvalidInputError(
                f"row {row} needs {prompt_cost + tail} tokens, more than the {budget} tokens of a micro-batch; raise "
                "ppo_max_token_len_per_gpu (log_prob_max_token_len_per_gpu) above prompt + response length"
            )
        if current and cost + tail > budget:
            pieces.append(_Piece(tuple(current), cost))
            current, cost = [], prompt_cost
        current.append(row)
        cost += tail
    pieces.append(_Piece(tuple(current), cost))
    return pieces


def _balance(pieces: list[_Piece], count: int, budget: int) -> list[list[int]] | None:
    """Largest piece first into the lightest micro-batch; None if one gets over the budget (Graham 1969, LPT rule)."""
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for piece in sorted(pieces, key=lambda piece: (-piece.cost, piece.rows)):
        lightest = min(range(count), key=lambda index: (loads[index], index))
        if loads[lightest] + piece.cost > budget:
            return None
        bins[lightest].extend(piece.rows)
        loads[lightest] += piece.cost
    return [rows for rows in bins if rows]
