"""Causal attention over a packed row, plugged into Hugging Face models through their `AttentionInterface`.

Transformers' own packed attention builds an [N, N] mask, so its cost grows with the square of the whole micro-batch.
This one gathers each sequence's rows into rectangles (see `argosy.modeling.packing`) and calls PyTorch's fused causal
kernel on them, so the cost grows with the squares of the single sequences. It also lets several responses attend to one
copy of their prompt.

The layout travels as the keyword argument `packed_layout` of the model's forward, not as a global: gradient
checkpointing repeats a layer's forward later, with the same arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from argosy.modeling.packing import PackedLayout
from argosy.types.errors import InternalError, InvalidInputError

PACKED_ATTENTION = "argosy_packed"
"""The name to give as `attn_implementation`."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    packed_layout: PackedLayout | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of each packed row to the earlier rows of its own sequence.

    Args:
        query: [1, H, N, D].
        key: [1, K, N, D] with K dividing H (grouped queries).
        value: As `key`.
        dropout: Ignored: old and new log-probs must be those of one and the same function (case B10).
        packed_layout: Which rows belong together.
        sliding_window: Attend to this many latest tokens only.

    Returns:
        [1, N, H, D], and None for the weights.
    """
    del attention_mask, dropout
    if packed_layout is None:
        raise InternalError(f"attention {PACKED_ATTENTION!r} was called without packed_layout: {type(module).__name__}")
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise InvalidInputError(
                f"{type(module).__name__} uses attention feature {name!r}, which packed attention lacks; "
                "this model can't be trained yet"
            )
    # [1, H, N, D] → [N, H, D], so that a gather copies whole rows.
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    results = [_rectangle(rows, bucket, scaling, sliding_window) for bucket in packed_layout.buckets]
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined.index_select(0, packed_layout.restore)[None], None


def _rectangle(rows: list[Tensor], bucket: Tensor, scaling: float | None, sliding_window: int | None) -> Tensor:
    """Causal attention in one bucket [b, T]; returns [b·T, H, D]."""
    count, width = bucket.shape
    index = bucket.reshape(-1)
    dtype = rows[0].dtype
    # PyTorch's fused backward on CPUs is several times slower in bfloat16 than in float32 at these widths.
    inner = torch.float32 if bucket.device.type == "cpu" and dtype == torch.bfloat16 else dtype
    # [N, H, D] → [b, H, T, D]
    query, key, value = (
        tensor.index_select(0, index).to(inner).view(count, width, tensor.shape[1], tensor.shape[2]).transpose(1, 2)
        for tensor in rows
    )
    mask = None
    if sliding_window is not None and sliding_window < width:
        steps = torch.arange(width, device=bucket.device)
        distance = steps[:, None] - steps[None, :]
        mask = (distance >= 0) & (distance < sliding_window)  # [T, T]
    with torch.autocast(bucket.device.type, enabled=False):
        result = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return result.transpose(1, 2).reshape(count * width, query.shape[1], value.shape[3]).to(dtype)


def register_packed_attention() -> None:
    """Make `PACKED_ATTENTION` known to transformers. Repeating it does no harm."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
