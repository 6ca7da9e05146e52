"""Rotary causal attention of short packed sequences on a CPU, as batched products, with a backward pass of its own.

Dimension letters: N packed rows, b sequences of a block, R own rows of a sequence, P rows of its prompt, T = P + R,
H heads, K key-value heads, S = H + 2K, D head size.

PyTorch's fused kernel spends most of its time on overhead where sequences have some hundred tokens, and its backward in
bfloat16 is slower than in float32. Here a block's sequences are multiplied together, and only response rows are
queries: the prompt, shared by its responses, attends to itself once. In the forward pass rotation, scores, softmax and
their product with the values are in float32. The backward pass has its products in the type of the inputs, as anywhere
under autocast, and takes the weights, kept in that type, as they are: T numbers per row and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from argosy.modeling.packing import AttentionBlock, BlockLayout

SCORE_ELEMENTS = 1 << 20
"""Scores that exist at one time: 4 MiB in float32, so that they stay near the processor."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Of an attention layer."""

    heads: int
    kv_heads: int
    size: int
    scaling: float
    """Scores are multiplied by it."""

    @property
    def slots(self) -> int:
        """S: queries, keys and values of a row."""
        return self.heads + 2 * self.kv_heads


def block_attention(projected: Tensor, cosine: Tensor, sine: Tensor, layout: BlockLayout, shape: HeadShape) -> Tensor:
    """Attention of each packed row to the earlier rows of its own sequence.

    Args:
        projected: [N, S·D]: queries, keys and values, not rotated yet.
        cosine: [N, D], of each row's position (Su et al. 2021, arXiv:2104.09864).
        sine: As `cosine`.
        layout: With blocks.
        shape: Of the heads.

    Returns:
        [N, H·D], in the type of `projected`.
    """
    function: Any = _BlockAttention.apply  # untyped in torch
    result: Tensor = function(projected, cosine, sine, layout, shape)
    return result


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, cosine: Tensor, sine: Tensor, layout: BlockLayout, shape: HeadShape
    ) -> Tensor:
        places = _places(layout, shape)
        states = projected.to(_precise(projected)).view(len(projected), -1, shape.size)  # [N, S, D]
        split = shape.heads + shape.kv_heads
        states = torch.cat([_rotate(states[:, :split], cosine, sine), states[:, split:]], 1)
        states[:, : shape.heads].mul_(shape.scaling)
        mixed = states.new_empty(places.query_count, shape.size)
        weights: list[Tensor] = []
        with torch.autocast(projected.device.type, enabled=False):
            for block, at in zip(layout.blocks, places.blocks, strict=True):
                kept = projected.new_empty(at.batch, at.query_rows, at.key_rows)
                for part in _parts(block, shape):
                    pick = at.heads_of(part, shape)
                    query, key, value = (_pick(states, index[pick]) for index in (at.query, at.key, at.value))
                    scores = torch.bmm(query, key.transpose(1, 2))
                    mask = block.mask_of(part)
                    scores.view(len(mask), -1, *mask.shape[2:]).add_(mask)
                    found = torch.softmax(scores, -1)
                    torch.bmm(found, value, out=at.queries_of(mixed, shape)[pick])
                    kept[pick] = found
                weights.append(kept)
        ctx.save_for_backward(states.to(projected.dtype), cosine, sine, *weights)
        ctx.layout, ctx.shape = layout, shape
        return mixed.index_select(0, places.query_restore).view(len(projected), -1).to(projected.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, cosine, sine, *weights = ctx.saved_tensors
        layout, shape = ctx.layout, ctx.shape
        places = _places(layout, shape)
        slopes = grads[0].contiguous().view(-1, shape.heads, shape.size)
        of_query = states.new_empty(places.query_count, shape.size)
        of_key_value = states.new_empty(2, places.key_count, shape.size)
        for block, at, kept in zip(layout.blocks, places.blocks, weights, strict=True):
            of_key, of_value = at.keys_of(of_key_value, shape)
            for part in _parts(block, shape):
                pick = at.heads_of(part, shape)
                slope = _pick(slopes, at.slope[pick])
                if at.padded:
                    slope.masked_fill_(at.padding[pick, :, None], 0)
                query, key, value = (_pick(states, index[pick]) for index in (at.query, at.key, at.value))
                found = kept[pick]
                of_scores = torch.ops.aten._softmax_backward_data(
                    torch.bmm(slope, value.transpose(1, 2)), found, -1, found.dtype
                )
                torch.bmm(of_scores, key, out=at.queries_of(of_query, shape)[pick])
                torch.bmm(of_scores.transpose(1, 2), query, out=of_key[pick])
                torch.bmm(found.transpose(1, 2), slope, out=of_value[pick])
        return _joined(of_query, of_key_value, places, layout, shape, cosine, sine), None, None, None, None


def _joined(
    of_query: Tensor,
    of_key_value: Tensor,
    places: _Places,
    layout: BlockLayout,
    shape: HeadShape,
    cosine: Tensor,
    sine: Tensor,
) -> Tensor:
    """Gradients of the blocks' (scaled, rotated) queries, keys and values → of the projections [N, S·D]."""
    precise, count = _precise(of_query), len(cosine)
    queries = of_query.index_select(0, places.query_restore).to(precise).mul_(shape.scaling)
    keys = of_key_value.index_select(1, places.key_restore).to(precise)  # [2, N·K, D]
    for block, at in zip(layout.blocks, places.blocks, strict=True):
        if block.prefix_width:
            found = at.keys_of(of_key_value, shape).view(2, len(block.rows), shape.kv_heads, at.key_rows, shape.size)
            width = block.prefix_width
            of_prompts = keys.new_zeros(2, len(block.prefix), shape.kv_heads, width, shape.size)
            of_prompts.index_add_(1, block.prefix_of, found[:, :, :, :width].to(precise))
            keys.index_add_(1, at.prefix, of_prompts.view(2, -1, shape.size))  # at padding it adds 0
    turned = torch.cat([queries.view(count, -1, shape.size), keys[0].view(count, -1, shape.size)], 1)
    result = of_query.new_empty(count, shape.slots, shape.size)
    result[:, : turned.shape[1]] = _unrotate(turned, cosine, sine)
    result[:, turned.shape[1] :] = keys[1].view(count, -1, shape.size)
    return result.view(count, -1)


@dataclass(frozen=True, slots=True, eq=False)
class _BlockPlaces:
    """Where a block's rows come from and go to. Rows are of [N·S, D], of [N·H, D] (slope) or of [N·K, D] (prefix)."""

    query: Tensor
    """[b·K, (H/K)·R]: the heads that share keys lie below one another."""
    slope: Tensor
    """As `query`."""
    key: Tensor
    """[b·K, T]."""
    value: Tensor
    """[b·K, T]."""
    prefix: Tensor
    """[g·K·P]."""
    padding: Tensor
    """[b·K, (H/K)·R] bool: what isn't a row."""
    padded: bool
    query_start: int
    """Where its queries are among all blocks'."""
    key_start: int

    @property
    def batch(self) -> int:
        """b·K."""
        return len(self.query)

    @property
    def query_rows(self) -> int:
        """(H/K)·R."""
        return self.query.shape[1]

    @property
    def key_rows(self) -> int:
        """T."""
        return self.key.shape[1]

    def heads_of(self, part: slice, shape: HeadShape) -> slice:
        """Sequences → their places in b·K."""
        return slice(part.start * shape.kv_heads, part.stop * shape.kv_heads)

    def queries_of(self, buffer: Tensor, shape: HeadShape) -> Tensor:
        """This block's piece [b·K, (H/K)·R, D] of all blocks' queries."""
        piece = buffer[self.query_start : self.query_start + self.query.numel()]
        return piece.view(*self.query.shape, shape.size)

    def keys_of(self, buffer: Tensor, shape: HeadShape) -> Tensor:
        """This block's piece [2, b·K, T, D] of all blocks' keys and values."""
        piece = buffer[:, self.key_start : self.key_start + self.key.numel()]
        return piece.view(2, *self.key.shape, shape.size)


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Of all blocks."""

    blocks: tuple[_BlockPlaces, ...]
    query_restore: Tensor
    """[N·H]: where each row's result is."""
    key_restore: Tensor
    """[N·K]: where each row's own key is."""
    query_count: int
    key_count: int


def _places(layout: BlockLayout, shape: HeadShape) -> _Places:
    """Made once per layout: all layers use them, in both directions."""
    key = (shape.heads, shape.kv_heads)
    found = layout.places.get(key)
    if not isinstance(found, _Places):
        found = layout.places[key] = _make_places(layout, shape)
    return found


def _make_places(layout: BlockLayout, shape: HeadShape) -> _Places:
    heads, kv_heads, slots = shape.heads, shape.kv_heads, shape.slots
    device = layout.restore.device
    count = len(layout.restore)
    blocks: list[_BlockPlaces] = []
    query_restore = torch.zeros(count, heads, dtype=torch.int64, device=device)
    key_restore = torch.zeros(count, kv_heads, dtype=torch.int64, device=device)
    query_start = key_start = 0
    head = torch.arange(heads, device=device).view(1, kv_heads, -1, 1)
    kv_head = torch.arange(kv_heads, device=device).view(1, -1, 1)
    for block in layout.blocks:
        b, width = block.rows.shape
        own = block.rows[:, None, None]  # [b, 1, 1, R]
        keys = torch.cat([block.prefix[block.prefix_of], block.rows], 1) if block.prefix_width else block.rows
        keys = keys[:, None]  # [b, 1, T]
        query = (own * slots + head).reshape(b * kv_heads, -1)
        key = (keys * slots + heads + kv_head).reshape(b * kv_heads, -1)
        real = ~block.padding
        queries = torch.arange(query.numel(), device=device).view(b, heads, width).transpose(1, 2)  # [b, R, H]
        query_restore[block.rows[real]] = queries[real] + query_start
        positions = torch.arange(key.numel(), device=device).view(b, kv_heads, -1).transpose(1, 2)  # [b, T, K]
        key_restore[block.rows[real]] = positions[:, block.prefix_width :][real] + key_start
        blocks.append(
            _BlockPlaces(
                query=query,
                slope=(own * heads + head).reshape(b * kv_heads, -1),
                key=key,
                value=key + kv_heads,
                prefix=(block.prefix[:, None] * kv_heads + kv_head).reshape(-1),
                padding=block.padding[:, None, None].expand(b, kv_heads, heads // kv_heads, width).reshape(query.shape),
                padded=bool(block.padding.any()),
                query_start=query_start,
                key_start=key_start,
            )
        )
        query_start += query.numel()
        key_start += key.numel()
    return _Places(tuple(blocks), query_restore.view(-1), key_restore.view(-1), query_start, key_start)


def _parts(block: AttentionBlock, shape: HeadShape) -> Iterator[slice]:
    """Sequences of a block in equal parts, so few at a time that their scores fit SCORE_ELEMENTS."""
    count, width = block.rows.shape
    scores = shape.heads * width * (width + block.prefix_width)  # of one
    parts = min(count, -(-count * scores // SCORE_ELEMENTS))
    size = -(-count // parts)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _pick(states: Tensor, index: Tensor) -> Tensor:
    """Rows of [N, S, D] at [b·K, X] of N·S, [b·K, X, D]."""
    rows = states.view(-1, states.shape[-1]).index_select(0, index.reshape(-1))
    return rows.view(*index.shape, states.shape[-1])


def _precise(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(torch.float32, tensor.dtype)


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x·cos + (-x₂, x₁)·sin of [N, …, D], with x₁ and x₂ the halves of D."""
    half = states.shape[2] // 2
    cosine, sine = cosine[:, None], sine[:, None]
    result = states * cosine
    result[..., :half].addcmul_(states[..., half:], sine[..., :half], value=-1)
    result[..., half:].addcmul_(states[..., :half], sine[..., half:])
    return result


def _unrotate(slopes: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The transposed map of `_rotate`."""
    half = slopes.shape[2] // 2
    cosine, sine = cosine[:, None], sine[:, None]
    result = slopes * cosine
    result[..., :half].addcmul_(slopes[..., half:], sine[..., half:])
    result[..., half:].addcmul_(slopes[..., :half], sine[..., :half], value=-1)
    return result
