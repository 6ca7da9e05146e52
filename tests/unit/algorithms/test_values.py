"""The clipped value loss and explained variance against loops in float64."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms.values import CLIPRANGE_VALUE, explained_variance, value_loss
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig

NUMBER = st.floats(-5, 5, allow_subnormal=False)


def config(limit: float) -> LossConfig:
    return LossConfig(loss_mode="value", options={"cliprange_value": limit})


def reference(value: float, old: float, target: float, limit: float) -> float:
    """PPO2's clipped value loss: the worse of the two squared errors, halved."""
    step = value - old
    if step > limit:
        step = limit
    if step < -limit:
        step = -limit
    return max((value - target) ** 2, (old + step - target) ** 2) / 2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=12), st.floats(0.01, 3))
def test_equals_the_reference(tokens: list[tuple[float, float, float]], limit: float) -> None:
    values, old, returns = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    found = value_loss(values, old, returns, config(limit)).losses
    assert found.tolist() == pytest.approx([reference(*token, limit) for token in tokens], abs=1e-12)


def test_the_gradient_ends_where_the_clipped_error_is_the_greater() -> None:
    values = torch.tensor([0.2, 2.0, -2.0, 2.0], dtype=torch.float64, requires_grad=True)
    old, returns = torch.zeros(4, dtype=torch.float64), torch.tensor([1.0, 2.0, 1.0, -1.0], dtype=torch.float64)

    def losses(given: torch.Tensor) -> torch.Tensor:
        return value_loss(given, old, returns, config(0.5)).losses

    assert torch.autograd.gradcheck(losses, (values,))
    (gradient,) = torch.autograd.grad(losses(values).sum(), values)
    # Within the range; moved too far towards its target (cut); moved away from its target, twice (never cut).
    assert gradient.tolist() == pytest.approx([-0.8, 0.0, -3.0, 3.0])
    metrics = value_loss(values, old, returns, config(0.5)).token_metrics
    assert metrics["critic/vf_clipfrac"].tolist() == [0, 1, 0, 0]
    assert metrics["critic/vpred_mean"].tolist() == values.tolist()
    assert not metrics["critic/vpred_mean"].requires_grad


def test_verls_default_range() -> None:
    assert CLIPRANGE_VALUE == 0.5
    given = (torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([2.0]))
    default = value_loss(*given, LossConfig(loss_mode="value")).losses
    assert default.tolist() == value_loss(*given, config(0.5)).losses.tolist() == [1.125]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_a_senseless_range_is_refused_with_the_number(limit: float) -> None:
    with pytest.raises(InvalidInputError, match=rf"cliprange_value must be above 0, got {limit}"):
        value_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), config(limit))


TOKEN = st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.booleans())


@settings(deadline=None, max_examples=60)
@given(st.lists(TOKEN, min_size=1, max_size=20))
def test_explained_variance_is_of_the_trained_tokens(tokens: list[tuple[int, int, bool]]) -> None:
    kept = [(float(value), float(target)) for value, target, mask in tokens if mask]
    values, returns, mask = (np.array(column, np.float32) for column in zip(*tokens, strict=True))
    values[mask == 0] = np.nan  # whatever lies at masked tokens
    found = explained_variance(values, returns, mask)
    if len({target for _, target in kept}) < 2:
        assert math.isnan(found)
        return
    errors = statistics.pvariance([target - value for value, target in kept])
    assert found == pytest.approx(1 - errors / statistics.pvariance([target for _, target in kept]), abs=1e-12)


def test_explained_variance_of_perfect_and_of_constant_values() -> None:
    returns = np.array([1.0, 2.0, 4.0], np.float32)
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 7.0), returns) == pytest.approx(0.0)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)
    # Large offsets don't eat the digits: everything is float64.
    assert explained_variance(returns + np.float64(1e7), returns + np.float64(1e7)) == 1.0


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="one shape"):
        explained_variance(np.zeros(3), np.zeros(2))
