"""The clipped surrogate against a float64 reference written from the papers, one token at a time."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms import catalog
from argosy.algorithms.aggregation import TokenLayout
from argosy.algorithms.losses import LOSSES, PolicyLossInputs, PolicyLossResult, get_loss
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig

CLIP_HIGHER = LossConfig(clip_ratio_low=0.2, clip_ratio_high=0.28)


def loss_of(ratios: list[float], advantages: list[float], config: LossConfig) -> PolicyLossResult:
    old = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    layout = TokenLayout(torch.ones(len(ratios)), torch.arange(len(ratios)), len(ratios))
    inputs = PolicyLossInputs(new, old, torch.tensor(advantages, dtype=torch.float64), layout)
    return get_loss("vanilla")(inputs, config)


def reference(ratio: float, advantage: float, config: LossConfig) -> float:
    """Dual clip, Ye et al. 2020, eq. 5, negated to be a loss."""
    low, high = 1 - config.clip_ratio_low, 1 + config.clip_ratio_high
    surrogate = min(ratio * advantage, min(max(ratio, low), high) * advantage)
    if advantage < 0:
        surrogate = max(surrogate, config.clip_ratio_c * advantage)
    return -surrogate


def test_b21_the_clipped_term_is_what_is_used_and_counted() -> None:
    result = loss_of([1.5, 1.25, 0.5, 1.5, 0.5], [1, 1, -1, -1, 1], CLIP_HIGHER)
    assert result.losses.tolist() == pytest.approx([-1.28, -1.25, 0.8, 1.5, -0.5])
    assert result.token_metrics["actor/pg_clipfrac"].tolist() == [1, 0, 1, 0, 0]
    assert result.token_metrics["actor/pg_clipfrac_lower"].sum() == 0


def test_dual_clip_bounds_the_loss_of_negative_advantages() -> None:
    result = loss_of([5.0, 2.9, 5.0], [-2.0, -2.0, 2.0], LossConfig(clip_ratio_c=3.0))
    assert result.losses.tolist() == pytest.approx([6.0, 5.8, -2.4])
    assert result.token_metrics["actor/pg_clipfrac_lower"].tolist() == [1, 0, 0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.floats(-4, 4)), min_size=1, max_size=20),
    st.sampled_from([(0.2, 0.2, 3.0), (0.2, 0.28, 10.0), (0.0, 0.0, 1.01), (0.9, 4.0, 2.0)]),
)
def test_equals_the_reference(tokens: list[tuple[float, float]], clip: tuple[float, float, float]) -> None:
    config = LossConfig(clip_ratio_low=clip[0], clip_ratio_high=clip[1], clip_ratio_c=clip[2])
    result = loss_of([ratio for ratio, _ in tokens], [advantage for _, advantage in tokens], config)
    assert result.losses.tolist() == pytest.approx([reference(*token, config) for token in tokens], abs=1e-9)


def test_gradients_are_those_of_finite_differences_and_end_where_clipped() -> None:
    ratios, advantages = [1.5, 1.25, 0.5, 1.5, 0.5, 5.0], [1.0, 1.0, -1.0, -1.0, 1.0, -1.0]
    old = torch.full((6,), -2.0, dtype=torch.float64)
    layout = TokenLayout(torch.ones(6), torch.arange(6), 6)

    def call(new: torch.Tensor) -> torch.Tensor:
        values = torch.tensor(advantages, dtype=torch.float64)
        return get_loss("vanilla")(PolicyLossInputs(new, old, values, layout), CLIP_HIGHER).losses

    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    assert torch.autograd.gradcheck(call, (new,))
    (gradient,) = torch.autograd.grad(call(new).sum(), new)
    assert gradient.tolist() == pytest.approx([0.0, -1.25, 0.0, 1.5, -0.5, 0.0])


def test_ppo_kl_is_the_mean_negative_log_ratio() -> None:
    result = loss_of([math.e, 1.0], [1.0, 1.0], LossConfig())
    assert result.token_metrics["actor/ppo_kl"].tolist() == pytest.approx([-1.0, 0.0])


def test_an_absurd_ratio_stays_finite() -> None:
    old, new = torch.tensor([-200.0]), torch.tensor([-1.0], requires_grad=True)
    layout = TokenLayout(torch.ones(1), torch.zeros(1, dtype=torch.int64), 1)
    for advantage in (1.0, -1.0):
        inputs = PolicyLossInputs(new, old, torch.tensor([advantage]), layout)
        losses = get_loss("vanilla")(inputs, LossConfig()).losses
        assert bool(torch.isfinite(losses).all())


@pytest.mark.parametrize(
    ("fields", "message"), [({"clip_ratio_c": 1.0}, "clip_ratio_c"), ({"clip_ratio_low": -0.1}, "negative")]
)
def test_senseless_bounds_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        loss_of([1.0], [1.0], dataclasses.replace(LossConfig(), **fields))  # type: ignore[arg-type]


def test_an_unknown_loss_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"loss_mode 'vanila'; known: vanilla"):
        get_loss("vanila")
    assert list(LOSSES) == list(catalog.LOSSES)
