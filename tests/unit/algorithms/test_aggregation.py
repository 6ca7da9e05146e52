"""Loss aggregation against references written as loops over sequences and tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argosy.algorithms.aggregation import AGGREGATIONS, TokenLayout, aggregate
from argosy.types.errors import InvalidInputError
from argosy.types.records import GlobalNormalizer

CONSTANT = 16.0
Sequences = list[list[tuple[float, int]]]
"""(loss, mask) of each token of each sequence."""


def reference(sequences: Sequences, mode: str) -> float:
    """The aggregate of a whole mini-batch, sequence by sequence."""
    trained = [[loss for loss, mask in tokens if mask] for tokens in sequences]
    kept = [losses for losses in trained if losses]
    if not kept:
        return 0.0
    if mode == "token-mean":
        return math.fsum(map(math.fsum, kept)) / sum(map(len, kept))
    per_sequence = [math.fsum(losses) / (len(losses) if mode == "seq-mean-token-mean" else 1) for losses in kept]
    mean = math.fsum(per_sequence) / len(kept)
    return mean / CONSTANT if mode == "seq-mean-token-sum-norm" else mean


def normalizer_of(sequences: Sequences) -> GlobalNormalizer:
    counts = [sum(mask for _, mask in tokens) for tokens in sequences]
    return GlobalNormalizer(float(sum(counts)), float(sum(count > 0 for count in counts)))


def flat(sequences: Sequences) -> tuple[Tensor, TokenLayout]:
    losses = torch.tensor([loss for tokens in sequences for loss, _ in tokens], dtype=torch.float64)
    mask = torch.tensor([mask for tokens in sequences for _, mask in tokens], dtype=torch.float64)
    owner = torch.tensor([row for row, tokens in enumerate(sequences) for _ in tokens], dtype=torch.int64)
    return losses.requires_grad_(), TokenLayout(mask, owner, len(sequences))


def shares(sequences: Sequences, cut: int, mode: str) -> tuple[float, list[float]]:
    """Sum over micro-batches of `cut` sequences, and each token's gradient."""
    normalizer = normalizer_of(sequences)
    total, gradients = 0.0, []
    for start in range(0, len(sequences), cut):
        losses, layout = flat(sequences[start : start + cut])
        share = aggregate(losses, layout, mode, normalizer, CONSTANT)
        (gradient,) = torch.autograd.grad(share, losses)
        total += share.item()
        gradients += gradient.tolist()
    return total, gradients


P: list[tuple[float, int]] = [(1.0, 1)] * 6
Q: list[tuple[float, int]] = [(4.0, 1)] * 2


@pytest.mark.parametrize("cut", [1, 2])
def test_b4_token_mean_is_over_the_global_mini_batch(cut: int) -> None:
    total, gradients = shares([P, Q], cut, "token-mean")
    assert total == pytest.approx(1.75)
    assert gradients == pytest.approx([1 / 8] * 8)


def test_b5_masked_tokens_are_in_neither_numerator_nor_denominator() -> None:
    kept: list[tuple[float, int]] = [(1.0, 1)] * 4
    truncated: list[tuple[float, int]] = [(5.0, 0)] * 12
    assert shares([kept, truncated], 1, "token-mean")[0] == 1.0
    total, gradients = shares([truncated], 1, "token-mean")
    assert (total, gradients) == (0.0, [0.0] * 12)


@pytest.mark.parametrize("cut", [1, 2])
def test_b6_the_constant_does_not_follow_the_layout(cut: int) -> None:
    assert shares([P, Q], cut, "seq-mean-token-sum-norm")[0] == pytest.approx(0.4375)


TOKENS = st.tuples(st.floats(-5, 5, allow_subnormal=False), st.integers(0, 1))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(TOKENS, max_size=6), min_size=1, max_size=6),
    st.integers(1, 6),
    st.sampled_from(sorted(AGGREGATIONS)),
)
def test_any_split_and_order_equals_the_reference(sequences: Sequences, cut: int, mode: str) -> None:
    expected = reference(sequences, mode)
    assert shares(sequences, cut, mode)[0] == pytest.approx(expected, abs=1e-9)
    order = np.random.default_rng(cut).permutation(len(sequences))
    assert shares([sequences[row] for row in order], cut, mode)[0] == pytest.approx(expected, abs=1e-9)


def test_nan_at_a_masked_token_stays_out_of_value_and_gradient() -> None:
    total, gradients = shares([[(1.0, 1), (float("nan"), 0)]], 1, "seq-mean-token-mean")
    assert (total, gradients) == (1.0, [1.0, 0.0])


def test_unknown_modes_and_a_missing_constant_are_refused() -> None:
    losses, layout = flat([P])
    with pytest.raises(InvalidInputError, match=r"unknown loss_agg_mode 'mean'; known: token-mean"):
        aggregate(losses, layout, "mean", GlobalNormalizer(6, 1))
    with pytest.raises(InvalidInputError, match=r"positive loss_scale_factor.*got None"):
        aggregate(losses, layout, "seq-mean-token-sum-norm", GlobalNormalizer(6, 1))
