"""Hugging Face weights to megatron-core's layout and back."""

from __future__ import annotations

import pytest
import torch

from argosy.trainer.backends.megatron.names import HeadShape, padded_vocabulary, slots

HEADS = HeadShape(head_count=4, kv_head_count=2, head_dim=3)
WIDTH, MIDDLE, VOCABULARY = 5, 8, 7


def hf_tensor(name: str) -> torch.Tensor:
    shapes = {
        "embed_tokens": (VOCABULARY, WIDTH),
        "lm_head": (VOCABULARY, WIDTH),
        "q_proj": (4 * 3, WIDTH),
        "k_proj": (2 * 3, WIDTH),
        "v_proj": (2 * 3, WIDTH),
        "o_proj": (WIDTH, 4 * 3),
        "gate_proj": (MIDDLE, WIDTH),
        "up_proj": (MIDDLE, WIDTH),
        "down_proj": (WIDTH, MIDDLE),
    }
    kind = next((shape for part, shape in shapes.items() if part in name), (WIDTH,))
    shape = kind[:1] if name.endswith("bias") else kind
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_slot_comes_back_whole(ranks: int) -> None:
    for name, slot in slots(2, HEADS, VOCABULARY, tied=False, qkv_bias=True, qk_norm=True).items():
        tensors = [hf_tensor(source) for source in slot.sources]
        parts = slot.split(tensors, ranks)
        assert len(parts) == ranks
        assert len({tuple(part.shape) for part in parts}) == 1, name
        back = slot.join(parts)
        assert len(back) == len(tensors)
        for tensor, found in zip(tensors, back, strict=True):
            assert torch.equal(tensor, found), name


def test_one_block_of_qkv_is_its_query_heads_its_key_and_its_value() -> None:
    slot = slots(1, HEADS, VOCABULARY, tied=True, qkv_bias=False, qk_norm=False)[
        "decoder.layers.0.self_attention.linear_qkv.weight"
    ]
    query, key, value = (hf_tensor(source) for source in slot.sources)
    second = slot.split([query, key, value], 2)[1]
    assert torch.equal(second, torch.cat([query[6:12], key[3:6], value[3:6]]))


def test_a_rank_holds_its_gate_above_its_up() -> None:
    slot = slots(1, HEADS, VOCABULARY, tied=True, qkv_bias=False, qk_norm=False)[
        "decoder.layers.0.mlp.linear_fc1.weight"
    ]
    gate, up = (hf_tensor(source) for source in slot.sources)
    assert torch.equal(slot.split([gate, up], 2)[0], torch.cat([gate[:4], up[:4]]))


def test_the_vocabulary_is_padded_with_zeros_to_a_multiple_of_the_ranks() -> None:
    slot = slots(1, HEADS, VOCABULARY, tied=True, qkv_bias=False, qk_norm=False)["embedding.word_embeddings.weight"]
    last = slot.split([hf_tensor(slot.sources[0])], 2)[1]
    assert padded_vocabulary(VOCABULARY, 2) == 8
    assert len(last) == 4
    assert torch.equal(last[3], torch.zeros(WIDTH))


def test_tied_models_have_no_output_layer() -> None:
    assert "output_layer.weight" not in slots(1, HEADS, VOCABULARY, tied=True, qkv_bias=False, qk_norm=False)
