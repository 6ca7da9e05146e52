"""The attention function that Hugging Face models call through `AttentionInterface`; the model code stays theirs.

A pass carries a `Prefill` or a `Decode` plan in the model call's keyword arguments; transformers hands it on to the
attention function of every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATTENTION_NAME = "argosy_slots"


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens start … end - 1 of one sequence, whose earlier keys and values are in the store already."""

    store: Tensor
    """[2, L, at least end, K, D]; the pass fills its places start … end - 1."""
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Prefill:
    """Sequences, or pieces of them, packed one after another: nothing sees another sequence's tokens."""

    spans: Sequence[Span]
    """Their lengths sum to N."""
    _masks: dict[tuple[int, int, int | None], Tensor | None] = field(init=False, default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """query [1, H, N, D], key and value [1, K, N, D] → [1, N, H, D]."""
        parts, place = [], 0
        for span in self.spans:
            here = slice(place, place + len(span))
            keys, values = key[:, :, here], value[:, :, here]  # [1, K, length, D]
            span.store[0, layer, span.start : span.end] = keys[0].transpose(0, 1)
            span.store[1, layer, span.start : span.end] = values[0].transpose(0, 1)
            if span.start:
                keys = span.store[0, layer, : span.end].transpose(0, 1)[None]  # [1, K, end, D]
                values = span.store[1, layer, : span.end].transpose(0, 1)[None]
            mask = self._mask(span, window, query.device)
            out = F.scaled_dot_product_attention(
                query[:, :, here],
                keys,
                values,
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            parts.append(out.transpose(1, 2))  # [1, length, H, D]
            place += len(span)
        return torch.cat(parts, 1)

    def _mask(self, span: Span, window: int | None, device: torch.device) -> Tensor | None:
        """What each token of a span sees, bool [length, end]; None: plainly what comes before it. Made once a pass."""
        seen = window if window is not None and window < span.end else None
        if span.start == 0 and seen is None:
            return None
        key = (span.start, span.end, seen)
        if key not in self._masks:
            places = torch.arange(span.end, device=device)
            distance = places[span.start :, None] - places[None, :]
            mask = distance >= 0
            self._masks[key] = mask if seen is None else mask & (distance < seen)
        return self._masks[key]


@dataclass(slots=True)
class Decode:
    """One new token for each of the first B rows of the slot cache."""

    cache: Tensor
    """[2, L, S, T, K, D]"""
    positions: Tensor
    """[B] int64: where each row's new token goes."""
    span: int
    """Tokens to look at: above every position."""
    _places: Tensor = field(init=False)
    """[B]: the new tokens' places in a layer's cache seen as [S × T, K, D]."""
    _masks: dict[int | None, Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        rows = torch.arange(len(self.positions), device=self.positions.device)
        self._places = rows * self.cache.shape[3] + self.positions

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """query [B, H, 1, D], key and value [B, K, 1, D] → [B, 1, H, D]."""
        row_count, head_count, _, head_size = query.shape
        kv_head_count = key.shape[1]
        keys, values = self.cache[0, layer], self.cache[1, layer]  # [S, T, K, D]
        keys.view(-1, kv_head_count, head_size).index_copy_(0, self._places, key[:, :, 0])
        values.view(-1, kv_head_count, head_size).index_copy_(0, self._places, value[:, :, 0])
        # The G query heads of a key head become G queries, so that keys and values are never repeated. [B, K, G, D]
        folded = query.reshape(row_count, kv_head_count, head_count // kv_head_count, head_size)
        out = F.scaled_dot_product_attention(
            folded,
            keys[:row_count, : self.span].transpose(1, 2),
            values[:row_count, : self.span].transpose(1, 2),
            attn_mask=self._mask(window, query.dtype),
            scale=scale,
        )
        return out.reshape(row_count, 1, head_count, head_size)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive, [B, 1, 1, span]; made once per pass and window."""
        if window not in self._masks:
            places = torch.arange(self.span, device=self.positions.device)
            hidden = places > self.positions[:, None]
            if window is not None:
                hidden |= places <= self.positions[:, None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self._masks[window] = mask[:, None, None, :]
        return self._masks[window]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    argosy_plan: Prefill | Decode | None = None,
    sliding_window: int | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    if argosy_plan is None:
        raise RuntimeError("the model did not hand the attention plan to its layers")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    layer: Any = module.layer_idx
    return argosy_plan.attend(layer, query, key, value, scale, sliding_window), None


def register() -> None:
    """Make the function known to transformers; repeating it changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION_NAME, _attend)
    AttentionMaskInterface.register(ATTENTION_NAME, lambda *args, **kwargs: None)
