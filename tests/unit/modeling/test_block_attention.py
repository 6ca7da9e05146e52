"""Attention in blocks equals loops over its definition, whatever the lengths and however the blocks are cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from argosy.modeling import block_attention as module
from argosy.modeling import packing
from argosy.modeling.block_attention import HeadShape, block_attention
from argosy.modeling.packing import BlockLayout, PackedBatch, pack
from argosy.types.ragged import Ragged

SHAPE = HeadShape(heads=4, kv_heads=2, size=6, scaling=0.3)

# Of each prompt its length and those of its responses; a response's last token is no row.
CASES = {
    "shared prompts": [(3, [4, 4, 2]), (5, [4, 1])],
    "unlike lengths": [(9, [2, 17, 8]), (1, [3]), (2, [1, 1])],
    "equal lengths": [(4, [5, 5]), (4, [5, 5])],
    "prompts alone": [(3, [1]), (7, [1])],
}


def packed_of(groups: list[tuple[int, list[int]]]) -> PackedBatch:
    prompts, responses = [], []
    for number, (prompt, lengths) in enumerate(groups):
        for length in lengths:
            prompts.append([number + 1] * prompt)
            responses.append([50] * length)
    return pack(Ragged.from_rows(prompts, np.int32), Ragged.from_rows(responses, np.int32))


def layout_of(packed: PackedBatch) -> BlockLayout:
    assert isinstance(packed.layout, BlockLayout)
    return packed.layout


def inputs_of(packed: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = len(packed.input_ids)
    projected = torch.randn(rows, SHAPE.slots * SHAPE.size, generator=generator, dtype=torch.float64)
    half = packed.position_ids[:, None].double() * torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)
    angles = torch.cat([half, half], 1)
    return projected, angles.cos(), angles.sin()


def turned(vector: list[float], position: int) -> list[float]:
    angles = [position * rate for rate in (1.0, 0.3, 0.01)]
    first = [a * math.cos(t) - b * math.sin(t) for a, b, t in zip(vector[:3], vector[3:], angles, strict=True)]
    second = [b * math.cos(t) + a * math.sin(t) for a, b, t in zip(vector[:3], vector[3:], angles, strict=True)]
    return first + second


def by_loops(packed: PackedBatch, projected: Tensor) -> dict[int, list[float]]:
    """Row → its result, from the sequences' own row numbers."""
    positions = packed.position_ids.tolist()
    slots = projected.view(len(positions), SHAPE.slots, SHAPE.size).tolist()
    found: dict[int, list[float]] = {}
    for bucket in packed.layout.buckets:
        for line in bucket.tolist():
            rows = [row for place, row in enumerate(line) if place == 0 or row != line[0]]
            for place, row in enumerate(rows):
                result: list[float] = []
                for head in range(SHAPE.heads):
                    kv = SHAPE.heads + head // (SHAPE.heads // SHAPE.kv_heads)
                    query = turned(slots[row][head], positions[row])
                    scores = []
                    for other in rows[: place + 1]:
                        key = turned(slots[other][kv], positions[other])
                        scores.append(SHAPE.scaling * sum(a * b for a, b in zip(query, key, strict=True)))
                    weights = [math.exp(score - max(scores)) for score in scores]
                    values = [slots[other][kv + SHAPE.kv_heads] for other in rows[: place + 1]]
                    for part in range(SHAPE.size):
                        total = sum(weight * value[part] for weight, value in zip(weights, values, strict=True))
                        result.append(total / sum(weights))
                found[row] = result
    return found


@pytest.mark.parametrize("elements", [1, 150, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_the_result_equals_loops_over_the_definition(name: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCORE_ELEMENTS", elements)
    packed = packed_of(CASES[name])
    projected, cosine, sine = inputs_of(packed)
    found = block_attention(projected, cosine, sine, layout_of(packed), SHAPE)
    expected = by_loops(packed, projected)
    assert expected.keys() == set(range(len(projected)))
    for row, values in expected.items():
        assert found[row].tolist() == pytest.approx(values, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("elements", [150, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCORE_ELEMENTS", elements)
    packed = packed_of(CASES[name])
    projected, cosine, sine = inputs_of(packed)
    layout = layout_of(packed)
    probe = torch.randn(len(projected), SHAPE.heads * SHAPE.size, dtype=torch.float64)

    def total(states: Tensor) -> Tensor:
        return (block_attention(states, cosine, sine, layout, SHAPE) * probe).sum()

    assert torch.autograd.gradcheck(total, (projected.requires_grad_(),), fast_mode=True)


def test_a_long_sequence_leaves_the_layout_without_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOCK_TOKENS", 8)
    assert layout_of(packed_of([(4, [5])])).blocks
    assert not layout_of(packed_of([(4, [6])])).blocks


def test_blocks_have_no_more_padding_than_they_may() -> None:
    draw = np.random.default_rng(0)
    groups = [(int(draw.integers(1, 60)), draw.integers(1, 90, 6).tolist()) for _ in range(5)]
    for block in layout_of(packed_of(groups)).blocks:
        count, width = block.rows.shape
        seen = (block.mask.expand(count, -1, -1, -1)[:, 0, -1] == 0).sum(1) - block.padding.sum(1)
        real = (~block.padding).sum(1)
        area = count * width * (block.prefix_width + width)
        assert float((real * seen).sum()) >= packing._MIN_FILL * area
