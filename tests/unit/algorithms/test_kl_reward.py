from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms.catalog import KL
from argosy.algorithms.kl_reward import PENALTIES, KLController, kl_penalty
from argosy.types.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", [0.5, -0.25, 0.0]),
        ("kl", [0.5, -0.25, 0.0]),
        ("abs", [0.5, 0.25, 0.0]),
        ("k2", [0.125, 0.03125, 0.0]),
        ("low_var_kl", [math.exp(-0.5) + 0.5 - 1, math.exp(0.25) - 0.25 - 1, 0.0]),
    ],
)
def test_estimators(kind: str, expected: list[float]) -> None:
    assert kl_penalty(np.array([-1.0, -2.0, -3.0]), np.array([-1.5, -1.75, -3.0]), kind) == pytest.approx(expected)


def test_k3_is_bounded() -> None:
    assert kl_penalty(np.array([-100.0]), np.array([0.0]), "k3").tolist() == [10.0]


def test_the_catalog_lists_them() -> None:
    assert set(PENALTIES) == set(KL)


@pytest.mark.parametrize("current", [math.nan, math.inf])
def test_a_kl_that_is_not_finite_leaves_the_coefficient(current: float) -> None:
    controller = KLController(0.1, horizon=1000)
    controller.update(current, 100)
    assert controller.coef == 0.1


def test_unknown_estimator() -> None:
    with pytest.raises(ConfigError, match="'k9'"):
        kl_penalty(np.zeros(1), np.zeros(1), "k9")


@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "low_var_kl"])
def test_a_plus_changes_gradients_only(kind: str) -> None:
    given = np.array([-1.0, -2.0]), np.array([-1.5, -1.75])
    assert kl_penalty(*given, f"{kind}+").tolist() == kl_penalty(*given, kind).tolist()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(-1, 10), st.integers(1, 512)), max_size=12),
    st.floats(1e-4, 1),
    st.floats(0.01, 5),
    st.integers(100, 20000),
)
def test_adaptive_controller_equals_the_papers_loop(
    steps: list[tuple[float, int]], coef: float, target: float, horizon: int
) -> None:
    """Ziegler et al. 2019, §2.2: e = clip((KL - target) / target, ±0.2), β ← β·(1 + K·e), K = n / horizon."""
    controller = KLController(coef, target=target, horizon=horizon)
    beta = coef
    for current, count in steps:
        error = (current - target) / target
        error = 0.2 if error > 0.2 else -0.2 if error < -0.2 else error
        beta = beta + beta * error * count / horizon
        controller.update(current, count)
        assert controller.coef == pytest.approx(beta, rel=1e-9)


def test_adaptive_controller_follows_the_paper() -> None:
    controller = KLController(0.1, target=0.1, horizon=1000)
    controller.update(0.3, 100)  # error clipped to +0.2
    assert controller.coef == pytest.approx(0.1 * (1 + 0.2 * 100 / 1000))
    fixed = KLController(0.1)
    fixed.update(9.0, 100)
    assert fixed.coef == 0.1
