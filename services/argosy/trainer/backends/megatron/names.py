"""Hugging Face weights ↔ megatron-core weights, split over tensor-parallel ranks.

Megatron fuses what Hugging Face keeps apart, and splits it over T ranks along fixed dimensions:

    linear_qkv   rows in blocks, one per key/value head: its query heads, its key, its value; blocks split over ranks
    linear_fc1   each rank holds its part of gate_proj above its part of up_proj
    embedding    rows padded to a multiple of T, split over ranks

Every tensor that has one number per weight (the weight, its gradient, AdamW's moments) is converted the same way, so a
checkpoint holds Hugging Face names and shapes whatever the parallel layout was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Join = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
Split = Callable[[Sequence[Tensor], int], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Slot:
    """One megatron parameter and the Hugging Face tensors that it is made of."""

    sources: tuple[str, ...]
    """Hugging Face names, in the order that `split` takes and `join` gives."""
    split: Split
    """(Hugging Face tensors, T) → one tensor per rank."""
    join: Join
    """One tensor per rank → Hugging Face tensors."""
    sharded: bool
    """False: every rank holds the same values."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How attention is cut into heads."""

    head_count: int
    kv_head_count: int
    head_dim: int

    @property
    def queries_per_group(self) -> int:
        """Query heads that share one key/value head."""
        return self.head_count // self.kv_head_count


def slots(
    layer_count: int, heads: HeadShape, vocab_size: int, *, tied: bool, qkv_bias: bool, qk_norm: bool
) -> Mapping[str, Slot]:
    """Megatron parameter name → its slot, for Llama-like decoders (Llama, Mistral, Qwen2, Qwen3)."""
    found = {
        "embedding.word_embeddings.weight": _vocabulary("model.embed_tokens.weight", vocab_size),
        "decoder.final_layernorm.weight": _replicated("model.norm.weight"),
    }
    if not tied:
        found["output_layer.weight"] = _vocabulary("lm_head.weight", vocab_size)
    for index in range(layer_count):
        ours, theirs = f"decoder.layers.{index}", f"model.layers.{index}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        found |= {
            f"{ours}.input_layernorm.weight": _replicated(f"{theirs}.input_layernorm.weight"),
            f"{ours}.pre_mlp_layernorm.weight": _replicated(f"{theirs}.post_attention_layernorm.weight"),
            f"{ours}.self_attention.linear_qkv.weight": _qkv(attention, "weight", heads),
            f"{ours}.self_attention.linear_proj.weight": _by_columns(f"{attention}.o_proj.weight"),
            f"{ours}.mlp.linear_fc1.weight": _gate_up(mlp),
            f"{ours}.mlp.linear_fc2.weight": _by_columns(f"{mlp}.down_proj.weight"),
        }
        if qkv_bias:
            found[f"{ours}.self_attention.linear_qkv.bias"] = _qkv(attention, "bias", heads)
        if qk_norm:
            found[f"{ours}.self_attention.q_layernorm.weight"] = _replicated(f"{attention}.q_norm.weight")
            found[f"{ours}.self_attention.k_layernorm.weight"] = _replicated(f"{attention}.k_norm.weight")
    return found


def padded_vocabulary(vocab_size: int, ranks: int) -> int:
    """Rows of the embedding over all ranks: the next multiple of their number."""
    return -(-vocab_size // ranks) * ranks


def _replicated(source: str) -> Slot:
    return Slot((source,), lambda tensors, ranks: [tensors[0]] * ranks, lambda parts: (parts[0],), sharded=False)


def _by_columns(source: str) -> Slot:
    def split(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
        return list(tensors[0].chunk(ranks, 1))

    return Slot((source,), split, lambda parts: (torch.cat(list(parts), 1),), sharded=True)


def _vocabulary(source: str, vocab_size: int) -> Slot:
    def split(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
        missing = padded_vocabulary(vocab_size, ranks) - vocab_size
        padding = tensors[0].new_zeros(missing, tensors[0].shape[1])
        return list(torch.cat([tensors[0], padding]).chunk(ranks, 0))

    return Slot((source,), split, lambda parts: (torch.cat(list(parts))[:vocab_size],), sharded=True)


def _gate_up(mlp: str) -> Slot:
    def split(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
        pairs = zip(tensors[0].chunk(ranks, 0), tensors[1].chunk(ranks, 0), strict=True)
        return [torch.cat(pair) for pair in pairs]

    def join(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        halves = [part.chunk(2, 0) for part in parts]
        return torch.cat([gate for gate, _ in halves]), torch.cat([up for _, up in halves])

    return Slot((f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"), split, join, sharded=True)


def _qkv(attention: str, kind: str, heads: HeadShape) -> Slot:
    group, queries, dim = heads.kv_head_count, heads.queries_per_group, heads.head_dim

    def split(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
        query, key, value = tensors
        rest = query.shape[1:]
        blocks = torch.cat(
            [
                query.reshape(group, queries * dim, *rest),
                key.reshape(group, dim, *rest),
                value.reshape(group, dim, *rest),
            ],
            1,
        )  # [K, (H/K + 2)·D, …]
        return [part.reshape(-1, *rest) for part in blocks.chunk(ranks, 0)]

    def join(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        rest = parts[0].shape[1:]
        blocks = torch.cat(list(parts)).reshape(group, (queries + 2) * dim, *rest)
        query, key, value = torch.split(blocks, [queries * dim, dim, dim], 1)
        return query.reshape(-1, *rest), key.reshape(-1, *rest), value.reshape(-1, *rest)

    names = tuple(f"{attention}.{name}_proj.{kind}" for name in "qkv")
    return Slot(names, split, join, sharded=True)
