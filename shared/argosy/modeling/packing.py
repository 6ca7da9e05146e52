"""Ragged sequences → one packed row of tokens without padding, with every prompt of a group computed once.

Dimension letters: B sequences, N packed rows (tokens that go through the network), M response tokens, T width of an
attention bucket.

Two things make the packed row short:

- *Prompts are shared.* All samples of a group answer the same prompt, so its rows are computed once, and each response
  attends to them. Causality makes this exact: a prompt's hidden states don't depend on what follows.
- *The last response token is left out.* The log-prob of a token comes from the output one position before it (case
  B23), so nothing reads the output at the last one.

Only attention must know which rows belong together: it gathers each sequence's rows into a rectangle `[b, T]` (a
bucket) and puts the results back. Right padding needs no mask under causal attention, since a padded key comes after
every real query. Sequences of like length share a bucket, so that little of the rectangle is padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.types.ragged import Ragged

_MIN_FILL = 0.75
"""A sequence shorter than this share of a bucket's width starts a new bucket."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayout:
    """Which packed rows attend to each other."""

    buckets: tuple[Tensor, ...]
    """Each [b, T] int64: row numbers of b sequences, right-padded with the sequence's first row."""
    restore: Tensor
    """[N] int64: where each packed row's result is in the buckets' results, laid end to end."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """What the network reads, and where the response tokens' distributions come out."""

    input_ids: Tensor
    """[N] int64."""
    position_ids: Tensor
    """[N] int64; restarts at 0 with each prompt, goes on from the prompt's length in each of its responses."""
    layout: PackedLayout
    output_rows: Tensor
    """[M] int64: the packed row whose output predicts each response token."""
    targets: Tensor
    """[M] int64: the response tokens, in the order of the ragged input."""
    owner: Tensor
    """[M] int64: the sequence (0…B-1) of each response token."""
    sequence_count: int


def prompt_keys(prompts: Ragged) -> list[bytes]:
    """A key per sequence, equal exactly where the prompts' token ids are equal."""
    return [row.astype(np.int32, copy=False).tobytes() for row in prompts]


def pack(
    prompts: Ragged, responses: Ragged, *, share_prompts: bool = True, device: torch.device | str = "cpu"
) -> PackedBatch:
    """Lay out B sequences (prompt + response) as one packed row.

    Args:
        prompts: Token ids, B sequences of ≥ 1 tokens.
        responses: Token ids, B sequences of ≥ 0 tokens. An empty one takes no part.
        share_prompts: Compute equal prompts once. False exists to test that it makes no difference.

    >>> packed = pack(Ragged.from_rows([[5, 6], [5, 6]], np.int32), Ragged.from_rows([[7, 8], [9]], np.int32))
    >>> packed.input_ids.tolist(), packed.position_ids.tolist(), packed.output_rows.tolist(), packed.targets.tolist()
    ([5, 6, 7], [0, 1, 2], [1, 2, 1], [7, 8, 9])
    """
    ids: list[npt.NDArray[Any]] = []
    positions: list[Rows] = []
    outputs: list[Rows] = []
    sequences: list[Rows] = []
    prompt_rows: dict[bytes, Rows] = {}
    row_count = 0
    keys = prompt_keys(prompts)
    for index, response in enumerate(responses):
        if len(response) == 0:
            continue
        prompt = prompts[index]
        key = keys[index] if share_prompts else index.to_bytes(8, "little")
        if key not in prompt_rows:
            prompt_rows[key] = np.arange(row_count, row_count + len(prompt))
            row_count += len(prompt)
            ids.append(prompt)
            positions.append(np.arange(len(prompt)))
        tail = np.arange(row_count, row_count + len(response) - 1)
        row_count += len(tail)
        ids.append(response[:-1])
        positions.append(np.arange(len(prompt), len(prompt) + len(tail)))
        rows = np.concatenate([prompt_rows[key], tail])
        sequences.append(rows)
        outputs.append(rows[len(prompt) - 1 :])

    def tensor(parts: list[Any]) -> Tensor:
        joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return torch.from_numpy(joined.astype(np.int64)).to(device)

    return PackedBatch(
        input_ids=tensor(ids),
        position_ids=tensor(positions),
        layout=_bucketed(sequences, row_count, device),
        output_rows=tensor(outputs),
        targets=tensor([responses.values]),
        owner=tensor([np.repeat(np.arange(len(responses)), responses.lengths)]),
        sequence_count=len(responses),
    )


def _bucketed(sequences: list[Rows], row_count: int, device: torch.device | str) -> PackedLayout:
    """Longest first; each bucket is a rectangle that is at least `_MIN_FILL` full in every row."""
    order = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
    rectangles: list[Rows] = []
    start = 0
    while start < len(order):
        width = len(sequences[order[start]])
        end = start
        while end < len(order) and len(sequences[order[end]]) >= _MIN_FILL * width:
            end += 1
        rectangle = np.empty((end - start, width), np.int64)
        for line, index in enumerate(order[start:end]):
            rows = sequences[index]
            rectangle[line, : len(rows)] = rows
            rectangle[line, len(rows) :] = rows[0]
        rectangles.append(rectangle)
        start = end
    return PackedLayout(
        buckets=tuple(torch.from_numpy(rectangle).to(device) for rectangle in rectangles),
        restore=torch.from_numpy(_restore(sequences, order, rectangles, row_count)).to(device),
    )


def _restore(sequences: list[Rows], order: list[int], rectangles: list[Rows], row_count: int) -> Rows:
    """For each packed row one real (not padded) place that holds it; a shared prompt row has several, all equal."""
    restore = np.zeros(row_count, np.int64)
    place = 0
    line = 0
    for rectangle in rectangles:
        count, width = rectangle.shape
        for _ in range(count):
            rows = sequences[order[line]]
            restore[rows] = np.arange(place, place + len(rows))
            place += width
            line += 1
    return restore
