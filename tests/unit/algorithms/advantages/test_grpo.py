from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms.advantages import AdvantageInputs, AdvantageOptions, estimator
from argosy.algorithms.advantages.inputs import group_numbers
from argosy.types.errors import ConfigError
from argosy.types.ragged import Ragged


def scalar_advantages(
    groups: list[str], rewards: list[float], *, judged: list[bool] | None = None, by_std: bool = True
) -> list[float]:
    """Advantages of one-token responses."""
    inputs = AdvantageInputs(
        Ragged.from_rows([[reward] for reward in rewards], np.float32),
        Ragged.from_rows([[1] for _ in rewards], np.int8),
        group_numbers(groups),
        np.array([True] * len(rewards) if judged is None else judged),
    )
    result = estimator("grpo")(inputs, AdvantageOptions(norm_adv_by_std_in_grpo=by_std))
    return [float(value) for value in result.advantages.values]


def reference(groups: list[str], rewards: list[float], by_std: bool) -> list[float]:
    """From the paper, in float64 with loops."""
    expected = []
    for group, reward in zip(groups, rewards, strict=True):
        peers = [value for name, value in zip(groups, rewards, strict=True) if name == group]
        if len(peers) < 2 or max(peers) == min(peers):
            expected.append(0.0)
            continue
        centred = reward - sum(peers) / len(peers)
        expected.append(centred / (statistics.stdev(peers) + 1e-6) if by_std else centred)
    return expected


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-8, 8).map(lambda x: x / 4)), min_size=1, max_size=20),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_equals_the_paper_in_any_order(rows: list[tuple[str, float]], by_std: bool, random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for order in (rows, shuffled):
        groups, rewards = [row[0] for row in order], [row[1] for row in order]
        assert scalar_advantages(groups, rewards, by_std=by_std) == pytest.approx(
            reference(groups, rewards, by_std), abs=1e-5
        )


def test_b1_singleton_group_gets_zero() -> None:
    values = scalar_advantages(["a", "a", "a", "b"], [1, 0, 0, 0.7])
    assert all(map(math.isfinite, values))
    assert values[3] == 0.0
    assert values[0] == pytest.approx((1 - 1 / 3) / (statistics.stdev([1, 0, 0]) + 1e-6), abs=1e-5)
    assert scalar_advantages(["a", "b", "c"], [1, 2, 3]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("by_std", [True, False])
def test_b3_rounding_is_not_spread(by_std: bool) -> None:
    third = np.float32(0.3)
    noisy = [float(third)] * 3 + [float(np.nextafter(third, np.float32(1)))]
    assert scalar_advantages(["a"] * 4, noisy, by_std=by_std) == [0.0] * 4
    assert scalar_advantages(["a"] * 4, [1.0] * 4, by_std=by_std) == [0.0] * 4


def test_b3_zero_spread_groups_are_counted() -> None:
    inputs = AdvantageInputs(
        Ragged.from_rows([[1.0], [1.0], [0.0], [1.0]], np.float32),
        Ragged.from_rows([[1]] * 4, np.int8),
        group_numbers(["a", "a", "b", "b"]),
        np.ones(4, bool),
    )
    metrics = estimator("grpo")(inputs, AdvantageOptions()).metrics
    assert metrics["critic/groups/zero_spread_fraction"] == 0.5


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


def test_unknown_estimator_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown estimator 'grop'.*grpo"):
        estimator("grop")
