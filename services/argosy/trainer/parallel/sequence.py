"""Sequence parallelism by exchanging heads for rows around attention (DeepSpeed-Ulysses, arXiv:2309.14509).

Dimension letters: N packed rows, S ranks, n = ⌈N/S⌉ rows of a rank, H heads, K key-value heads, D head size, M response
tokens of the packed batch, m of them on this rank.

Outside attention each row is computed on its own, so each rank takes n consecutive rows of the packed batch, whatever
sequences they belong to. Before attention an all-to-all turns [n rows, H heads] into [N rows, H/S heads], and after it
another turns them back; packed attention runs unchanged on a few heads of everything. Fewer than S key-value heads, or
a number that S doesn't divide, are repeated first (`argosy.modeling.heads.kv_repeats`).

The per-token results of all ranks are then summed into one vector of M (`gather_tokens`), so that each rank computes
the same loss over whole sequences. Each counts 1/S: FSDP takes the mean over data and sequence ranks, so what is
backpropagated is to be scaled by the number of *data* ranks only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from argosy.modeling.attention import packed_attention
from argosy.modeling.heads import check_heads, kv_repeats
from argosy.modeling.packing import PackedBatch, PackedLayout

ULYSSES_ATTENTION = "argosy_packed_ulysses"
"""The name to give as `attn_implementation`."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitLayout(PackedLayout):
    """The layout of all S·n rows, of which a rank holds n."""

    group: ProcessGroup
    """The ranks that hold the rows together, in order."""


def apply_sequence_parallel(model: Any, mesh: DeviceMesh, *, tensor_parallel: int = 1) -> None:
    """Let a model's attention exchange heads for rows where the layout is a `SplitLayout`; else it is as before.

    Args:
        model: A transformers model.
        mesh: One-dimensional.
        tensor_parallel: Ranks that the heads are already divided over.

    Raises InvalidInputError if the number of ranks doesn't divide the heads, with the numbers.
    """
    from transformers import AttentionInterface

    config = model.config.get_text_config()
    check_heads(
        config.num_attention_heads,
        config.num_key_value_heads,
        tensor_parallel=tensor_parallel,
        sequence_parallel=mesh.size(),
    )
    AttentionInterface.register(ULYSSES_ATTENTION, ulysses_attention)
    model.set_attn_implementation(ULYSSES_ATTENTION)


def split_rows(packed: PackedBatch, group: ProcessGroup) -> tuple[PackedBatch, Tensor]:
    """This rank's rows, and which of the M response tokens [m] they predict.

    The batch is filled up to S·n rows; nothing attends to the filling and nothing reads it.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    count = -(-len(packed.input_ids) // size)  # n
    filling = count * size - len(packed.input_ids)
    first = rank * count

    def mine(rows: Tensor) -> Tensor:
        return functional.pad(rows, (0, filling))[first : first + count]

    places = ((packed.output_rows >= first) & (packed.output_rows < first + count)).nonzero()[:, 0]
    local = PackedBatch(
        input_ids=mine(packed.input_ids),
        position_ids=mine(packed.position_ids),
        layout=SplitLayout(packed.layout.buckets, functional.pad(packed.layout.restore, (0, filling)), group),
        output_rows=packed.output_rows[places] - first,
        targets=packed.targets[places],
        owner=packed.owner[places],
        sequence_count=packed.sequence_count,
    )
    return local, places


def gather_tokens(values: Tensor, places: Tensor, count: int, group: ProcessGroup) -> Tensor:
    """[…, M] on every rank from [..., m] on each, differentiable.

    Args:
        values: This rank's results.
        places: [m] int64, from `split_rows`.
        count: M.
    """
    spread = values.new_zeros(*values.shape[:-1], count).index_copy(-1, places, values)
    total: Tensor = _SumOverRanks.apply(spread, group)  # type: ignore[no-untyped-call]
    return total


def ulysses_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: PackedLayout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`packed_attention` for rows that are split over ranks.

    Args:
        query: [1, H, n, D].
        key: [1, K, n, D].
        value: As `key`.
        packed_layout: A `SplitLayout`; a plain one is not exchanged.

    Returns:
        [1, n, H, D], and None for the weights.
    """
    if not isinstance(packed_layout, SplitLayout):
        return packed_attention(module, query, key, value, attention_mask, packed_layout=packed_layout, **kwargs)
    group = packed_layout.group
    repeats = kv_repeats(key.shape[1], dist.get_world_size(group))
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    query, key, value = (_heads_to_rows(tensor, group) for tensor in (query, key, value))
    mixed, _ = packed_attention(module, query, key, value, attention_mask, packed_layout=packed_layout, **kwargs)
    return _rows_to_heads(mixed, group), None


def _heads_to_rows(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """[1, H, n, D] → [1, H/S, S·n, D]: fewer heads, all rows."""
    size = dist.get_world_size(group)
    _, heads, rows, width = tensor.shape
    blocks = _exchange(tensor.reshape(size, heads // size, rows, width), group)  # [S row blocks, H/S, n, D]
    return blocks.transpose(0, 1).reshape(1, heads // size, size * rows, width)


def _rows_to_heads(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """[1, S·n, H/S, D] → [1, n, H, D]: fewer rows, all heads."""
    size = dist.get_world_size(group)
    _, rows, heads, width = tensor.shape
    blocks = _exchange(tensor.reshape(size, rows // size, heads, width), group)  # [S head blocks, n, H/S, D]
    return blocks.transpose(0, 1).reshape(1, rows // size, size * heads, width)


def _exchange(blocks: Tensor, group: ProcessGroup) -> Tensor:
    """Block i of rank j becomes block j of rank i."""
    exchanged: Tensor = _AllToAll.apply(blocks, group)  # type: ignore[no-untyped-call]
    return exchanged


class _AllToAll(torch.autograd.Function):
    """Its own adjoint."""

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(blocks, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, blocks.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchange(grads[0], ctx.group), None


class _SumOverRanks(torch.autograd.Function):
    """Each rank's loss depends on each rank's input, so the gradient is summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
