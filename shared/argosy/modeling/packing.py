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

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.types.ragged import Ragged

_MIN_FILL = 0.75
"""A sequence shorter than this share of a bucket's width starts a new bucket."""
BLOCK_TOKENS = 256
"""Longest sequence of a layout with blocks: their masks and attention weights grow with its square."""
SEGMENT_STEP = 32
"""Rows of a segment are padded to a multiple of it where they are keys."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayout:
    """Which packed rows attend to each other."""

    buckets: tuple[Tensor, ...]
    """Each [b, T] int64: row numbers of b sequences, right-padded with the sequence's first row."""
    restore: Tensor
    """[N] int64: where each packed row's result is in the buckets' results, laid end to end."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlock:
    """Sequences of like length without their prompts, or prompts, for `argosy.modeling.block_attention`."""

    rows: Tensor
    """[b, R] int64: own rows of each, right-padded with the first one."""
    prefix: Tensor
    """[g, P] int64: rows of the distinct prompts before them, right-padded likewise; [0, 0] for prompts themselves."""
    prefix_of: Tensor
    """[b] int64: which of the g; empty for prompts."""
    mask: Tensor
    """[b, 1, R, P + R], or [1, 1, R, P + R] if equal for all: 0 where a row sees prompt and own rows, else -inf."""
    padding: Tensor
    """[b, R] bool: places in `rows` that are padding."""

    @property
    def prefix_width(self) -> int:
        """P."""
        return self.prefix.shape[1]

    def mask_of(self, part: slice) -> Tensor:
        """The mask of some of the b."""
        return self.mask if len(self.mask) == 1 else self.mask[part]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The same rows as runs: each prompt, and the own rows of each of its responses, for `argosy.modeling.native`."""

    rows: Tensor
    """[S, 3] int64: first row, number of rows, and the number of its prompt's segment (-1: it is one)."""
    groups: Tensor
    """[G + 1] int64: the first segment of each prompt with its responses, and S."""
    longest: int
    """Most rows of a group, each segment padded to SEGMENT_STEP."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockLayout(PackedLayout):
    """Also the same rows with each prompt apart from its responses."""

    blocks: tuple[AttentionBlock, ...]
    """Empty where a sequence is longer than BLOCK_TOKENS."""
    segments: Segments
    places: dict[tuple[int, int], object] = field(default_factory=dict)
    """What `argosy.modeling.block_attention` has worked out from the blocks, by numbers of heads."""


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
    tails: list[tuple[Rows, Rows]] = []  # of each sequence the prompt's rows and its own
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
        tails.append((prompt_rows[key], tail))
        outputs.append(rows[len(prompt) - 1 :])

    def tensor(parts: list[Any]) -> Tensor:
        joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return torch.from_numpy(joined.astype(np.int64)).to(device)

    return PackedBatch(
        input_ids=tensor(ids),
        position_ids=tensor(positions),
        layout=_layout(sequences, list(prompt_rows.values()), tails, row_count, device),
        output_rows=tensor(outputs),
        targets=tensor([responses.values]),
        owner=tensor([np.repeat(np.arange(len(responses)), responses.lengths)]),
        sequence_count=len(responses),
    )


def _layout(
    sequences: list[Rows],
    prompts: list[Rows],
    tails: list[tuple[Rows, Rows]],
    row_count: int,
    device: torch.device | str,
) -> BlockLayout:
    plain = _bucketed(sequences, row_count, device)
    blocks: list[AttentionBlock] = []
    if max(map(len, sequences), default=0) <= BLOCK_TOKENS:
        none = np.zeros(0, np.int64)
        pairs = ([(none, prompt) for prompt in prompts], [pair for pair in tails if len(pair[1])])
        blocks = [_block(members, device) for kind in pairs for members in _alike(kind)]
    return BlockLayout(plain.buckets, plain.restore, tuple(blocks), _segments(prompts, tails))


def _segments(prompts: list[Rows], tails: list[tuple[Rows, Rows]]) -> Segments:
    """Of prompts and pairs of a prompt's rows and a response's own: all of them runs."""
    of_prompt: dict[int, list[Rows]] = {int(prompt[0]): [] for prompt in prompts}
    for prompt, own in tails:
        if len(own):
            of_prompt[int(prompt[0])].append(own)
    rows: list[tuple[int, int, int]] = []
    groups, longest = [0], 0
    for prompt in prompts:
        first, members = len(rows), [prompt, *of_prompt[int(prompt[0])]]
        rows += [(int(part[0]), len(part), -1 if part is prompt else first) for part in members]
        groups.append(len(rows))
        longest = max(longest, sum(-(-len(part) // SEGMENT_STEP) * SEGMENT_STEP for part in members))
    return Segments(torch.tensor(rows, dtype=torch.int64).view(-1, 3), torch.tensor(groups), longest)


def _alike(pairs: list[tuple[Rows, Rows]]) -> list[list[tuple[Rows, Rows]]]:
    """Pairs of prompt and own rows, longest own first, cut where a block would be less than _MIN_FILL full."""
    found: list[list[tuple[Rows, Rows]]] = []
    area = widest = 0
    for prompt, own in sorted(pairs, key=lambda pair: (-len(pair[1]), -len(pair[0]))):
        size = len(own) * (len(prompt) + len(own))
        if found:
            longest = len(found[-1][0][1])
            widest_now = max(widest, len(prompt))
            full = (len(found[-1]) + 1) * longest * (widest_now + longest)
            if area + size >= _MIN_FILL * full:
                found[-1].append((prompt, own))
                area, widest = area + size, widest_now
                continue
        found.append([(prompt, own)])
        area, widest = size, len(prompt)
    return found


def _block(members: list[tuple[Rows, Rows]], device: torch.device | str) -> AttentionBlock:
    prompts: dict[int, Rows] = {}  # by first row: a row belongs to one prompt
    for prompt, _ in members:
        if len(prompt):
            prompts[int(prompt[0])] = prompt
    numbers = {first: number for number, first in enumerate(prompts)}
    rows, lengths = _rectangle([own for _, own in members])
    prefix, _ = _rectangle(list(prompts.values()))
    spans = np.asarray(sorted({len(prompt) for prompt, _ in members}))
    spans = spans if len(spans) == 1 else np.asarray([len(prompt) for prompt, _ in members])
    width = rows.shape[1]
    steps = np.arange(width)
    seen = np.concatenate(
        [
            np.broadcast_to(
                (np.arange(prefix.shape[1]) < spans[:, None])[:, None], (len(spans), width, prefix.shape[1])
            ),
            np.broadcast_to(steps[:, None] >= steps, (len(spans), width, width)),
        ],
        2,
    )

    def tensor(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return AttentionBlock(
        rows=tensor(rows),
        prefix=tensor(prefix),
        prefix_of=tensor(np.asarray([numbers[int(prompt[0])] for prompt, _ in members if len(prompt)], np.int64)),
        mask=tensor(np.where(seen, np.float32(0), np.float32(-np.inf))[:, None]),
        padding=tensor(steps >= lengths[:, None]),
    )


def _rectangle(parts: list[Rows]) -> tuple[Rows, Rows]:
    """Rows of unlike number, right-padded with the first of each, and their numbers."""
    lengths = np.asarray([len(part) for part in parts], np.int64)
    filled = np.zeros((len(parts), int(lengths.max(initial=0))), np.int64)
    for line, part in enumerate(parts):
        filled[line, : len(part)] = part
        filled[line, len(part) :] = part[0]
    return filled, lengths


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
        rectangles.append(_rectangle([sequences[index] for index in order[start:end]])[0])
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
