"""Cases B4, B5, B6 and B21 with their exact numbers, over every policy loss to which they apply."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from argosy.types.records import LossConfig
from support.loss_references import Token
from support.losses import CONFIGS, normalizer_of, result_of, share_of

LOG_PROB = -1.0


def loss_at(advantage: float, name: str) -> float:
    """Of one token at ratio 1."""
    _, result = result_of([[Token(LOG_PROB, LOG_PROB, advantage)]], CONFIGS[name])
    return result.losses.item()


def tokens_of(loss: float, count: int, name: str, mask: int = 1) -> list[Token]:
    """`count` tokens with exactly this loss, which is proportional to the advantage on either side of 0."""
    sign = 1.0 if loss_at(1.0, name) > 0 else -1.0
    return [Token(LOG_PROB, LOG_PROB, sign * loss / loss_at(sign, name), mask)] * count


def shares(batch: list[list[Token]], cuts: list[list[int]], config: LossConfig) -> tuple[float, list[float]]:
    """Sum over parts (micro-batches or ranks) of the mini-batch, and each token's gradient."""
    normalizer = normalizer_of(batch)
    total, gradients = 0.0, []
    for rows in cuts:
        share, moved = share_of([batch[row] for row in rows], config, normalizer)
        total += share
        gradients += [value for sequence in moved for value in sequence]
    return total, gradients


LAYOUTS = [[[0, 1]], [[0], [1]]]
"""As one micro-batch; as two, or on two ranks."""


@pytest.mark.parametrize("name", CONFIGS)
def test_b4_the_mean_is_over_all_tokens_whatever_the_layout(name: str) -> None:
    config = dataclasses.replace(CONFIGS[name], loss_agg_mode="token-mean")
    batch = [tokens_of(1.0, 6, name), tokens_of(4.0, 2, name)]
    (one, gradient), (two, other) = (shares(batch, cuts, config) for cuts in LAYOUTS)
    assert [one, two] == pytest.approx([1.75, 1.75])
    assert any(gradient)
    assert other == pytest.approx(gradient)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("name", CONFIGS)
def test_b5_masked_tokens_are_in_neither_numerator_nor_denominator(name: str, mode: str) -> None:
    config = dataclasses.replace(CONFIGS[name], loss_agg_mode=mode)
    kept, truncated = tokens_of(1.0, 4, name), tokens_of(5.0, 12, name, mask=0)
    for cuts in LAYOUTS:
        assert shares([kept, truncated], cuts, config)[0] == pytest.approx(1.0)
    masked = [[dataclasses.replace(token, mask=0) for token in kept], truncated]
    assert shares(masked, [[0], [1]], config) == (0.0, [0.0] * 16)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("name", CONFIGS)
def test_b6_the_constant_follows_neither_padding_nor_layout(name: str, width: int) -> None:
    config = dataclasses.replace(CONFIGS[name], loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=16.0)
    batch = [tokens_of(1.0, 6, name), tokens_of(4.0, 2, name)]
    padding = Token(-3.0, -1.0, 2.0, mask=0)
    padded = [sequence + [padding] * (width - len(sequence)) for sequence in batch]
    for cuts in LAYOUTS:
        assert shares(padded, cuts, config)[0] == pytest.approx(0.4375)


CLIPPING = ["vanilla", "gspo", "clip_cov", "bypass_mode"]
"""Those whose loss is the clipped surrogate; gspo's ratio is the token's in sequences of one token."""


@pytest.mark.parametrize("name", CLIPPING)
def test_b21_the_clipped_term_is_what_is_used_and_counted(name: str) -> None:
    config = dataclasses.replace(CONFIGS[name], clip_ratio_low=0.2, clip_ratio_high=0.28)
    cases = [(1.5, 1.0), (1.25, 1.0), (0.5, -1.0), (1.5, -1.0), (0.5, 1.0)]
    _, result = result_of([[Token(-2.0 + np.log(ratio), -2.0, advantage)] for ratio, advantage in cases], config)
    assert result.losses.tolist() == pytest.approx([-1.28, -1.25, 0.8, 1.5, -0.5])
    assert result.token_metrics["actor/pg_clipfrac"].tolist() == [1, 0, 1, 0, 0]


@pytest.mark.parametrize("name", CLIPPING)
def test_b21_counted_tokens_are_those_without_a_gradient(name: str) -> None:
    cases = [(ratio, advantage) for ratio in (0.3, 0.9, 1.2, 1.4, 2.9) for advantage in (1.0, -1.0)]
    batch = [[Token(-2.0 + np.log(ratio), -2.0, advantage)] for ratio, advantage in cases]
    inputs, result = result_of(batch, CONFIGS[name])
    (gradient,) = torch.autograd.grad(result.losses.sum(), inputs.log_probs)
    assert (result.token_metrics["actor/pg_clipfrac"] > 0).tolist() == (gradient == 0).tolist()


def test_gmpos_counts_are_those_of_the_tokens_that_were_cut() -> None:
    """At A > 0 above the range, at A < 0 below it: the other sides keep their gradient."""
    up = [Token(-2.0 + gap, -2.0, 1.0) for gap in (0.5, -0.5, 0.1)]
    down = [Token(-2.0 + gap, -2.0, -1.0) for gap in (0.5, -0.5, 0.1)]
    inputs, result = result_of([up, down], CONFIGS["geo_mean"])
    assert result.token_metrics["actor/pg_clipfrac"].tolist() == [1, 0, 0, 0, 0, 0]
    assert result.token_metrics["actor/pg_clipfrac_lower"].tolist() == [0, 0, 0, 0, 1, 0]
    (gradient,) = torch.autograd.grad(result.losses.sum(), inputs.log_probs)
    assert (gradient == 0).tolist() == [True, False, False, False, True, False]
