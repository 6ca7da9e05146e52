from __future__ import annotations

import math

import numpy as np
import pytest

from argosy.algorithms.kl_reward import KLController, kl_penalty
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


def test_unknown_estimator() -> None:
    with pytest.raises(ConfigError, match="'k9'"):
        kl_penalty(np.zeros(1), np.zeros(1), "k9")


def test_adaptive_controller_follows_the_paper() -> None:
    controller = KLController(0.1, target=0.1, horizon=1000)
    controller.update(0.3, 100)  # error clipped to +0.2
    assert controller.coef == pytest.approx(0.1 * (1 + 0.2 * 100 / 1000))
    fixed = KLController(0.1)
    fixed.update(9.0, 100)
    assert fixed.coef == 0.1
