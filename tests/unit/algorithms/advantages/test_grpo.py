from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from argosy.algorithms.advantages import AdvantageInputs, AdvantageOptions, estimator
from argosy.algorithms.advantages.inputs import group_numbers
from argosy.types.errors import ConfigError
from argosy.types.ragged import Ragged


def scalar_advantages(
    groups: list[str],
    rewards: list[float],
    *,
    judged: list[bool] | None = None,
    by_std: bool = True,
    name: str = "grpo",
) -> list[float]:
    """Advantages of one-token responses."""
    inputs = AdvantageInputs(
        Ragged.from_rows([[reward] for reward in rewards], np.float32),
        Ragged.from_rows([[1] for _ in rewards], np.int8),
        group_numbers(groups),
        np.array([True] * len(rewards) if judged is None else judged),
    )
    result = estimator(name)(inputs, AdvantageOptions(norm_adv_by_std_in_grpo=by_std))
    return [float(value) for value in result.advantages.values]


def test_b1_singleton_group_gets_zero() -> None:
    values = scalar_advantages(["a", "a", "a", "b"], [1, 0, 0, 0.7])
    assert all(map(math.isfinite, values))
    assert values[3] == 0.0
    assert values[0] == pytest.approx((1 - 1 / 3) / (statistics.stdev([1, 0, 0]) + 1e-6), abs=1e-5)


def test_g1_unjudged_samples_leave_mean_and_spread() -> None:
    values = scalar_advantages(["a"] * 4, [1.0, math.nan, 0.0, math.nan], judged=[True, False, True, False])
    assert values == pytest.approx(
        [*(x / (math.sqrt(0.5) + 1e-6) for x in (0.5,)), 0.0, -0.5 / (math.sqrt(0.5) + 1e-6), 0.0]
    )
    assert scalar_advantages(["a"] * 4, [math.nan] * 4, judged=[False] * 4) == [0.0] * 4


def test_advantage_is_spread_over_the_mask_only() -> None:
    inputs = AdvantageInputs(
        Ragged.from_rows([[0, 0, 1.0], [0.0]], np.float32),
        Ragged.from_rows([[1, 0, 1], [1]], np.int8),
        group_numbers(["a", "a"]),
        np.ones(2, bool),
    )
    advantages = estimator("grpo")(inputs, AdvantageOptions(norm_adv_by_std_in_grpo=False)).advantages
    assert advantages[0].tolist() == [0.5, 0.0, 0.5]
    assert advantages[1].tolist() == [-0.5]


def test_dr_grpo_is_grpo_without_the_division() -> None:
    rewards = [1.0, 0.25, 0.0]
    expected = scalar_advantages(["a"] * 3, rewards, by_std=False)
    assert scalar_advantages(["a"] * 3, rewards, by_std=True, name="dr_grpo") == expected
    assert expected == pytest.approx([1 - 1.25 / 3, 0.25 - 1.25 / 3, -1.25 / 3])


def test_passk_gives_only_the_best_its_lead() -> None:
    rewards = [0.25, 1.0, 0.75, 0.0]
    lead = scalar_advantages(["a"] * 4, rewards, by_std=False, name="grpo_passk")
    assert lead == pytest.approx([0, 0.25, 0, 0])
    divided = scalar_advantages(["a"] * 4, rewards, name="grpo_passk")
    assert divided == pytest.approx([0, 0.25 / (statistics.stdev(rewards) + 1e-6), 0, 0])


def test_passk_gives_nothing_to_two_equally_good() -> None:
    assert scalar_advantages(["a"] * 3, [1.0, 0.0, 1.0], name="grpo_passk") == [0.0] * 3


def test_unknown_estimator_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown estimator 'grop'.*grpo"):
        estimator("grop")
