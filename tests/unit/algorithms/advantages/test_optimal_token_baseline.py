from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from argosy.algorithms.advantages import AdvantageOptions, estimator
from support.advantage_references import Sample, inputs_of


def rows(name: str, *samples: Sample) -> list[list[float]]:
    return [row.tolist() for row in estimator(name)(inputs_of(samples), AdvantageOptions()).advantages]


def sure(reward: float, probs: list[float], mask: list[int] | None = None, weights: Sequence[float] = ()) -> Sample:
    """Two tokens to choose from, so Σπ² = π² + (1 − π)² and w = 1 − 2π + Σπ² = 2(1 − π)²."""
    return Sample(
        "a",
        [0.0] * (len(probs) - 1) + [reward],
        mask or [1] * len(probs),
        log_probs=[math.log(p) for p in probs],
        squares=[p * p + (1 - p) ** 2 for p in probs],
        weights=list(weights),
    )


def test_baseline_leans_to_the_sample_of_more_energy() -> None:
    # w = 2·0.5² = 0.5 and 2·0.9² = 1.62; W after two tokens: 1.0 and 3.24
    got = rows("optimal_token_baseline", sure(1, [0.5, 0.5]), sure(0, [0.1, 0.1]))
    share = 0.5 / 2.12
    assert got[0] == pytest.approx([1 - share, 1 - share], rel=1e-6)
    assert got[1] == pytest.approx([-share, -share], rel=1e-6)


def test_energy_adds_up_along_the_response() -> None:
    got = rows("optimal_token_baseline", sure(1, [0.5, 0.5]), sure(0, [0.1, 0.5]))
    assert got[1] == pytest.approx([-0.5 / 2.12, -1.0 / (1.0 + 2.12)], rel=1e-6)


def test_importance_weights_enter_squared() -> None:
    got = rows("optimal_token_baseline", sure(1, [0.5], weights=[2.0]), sure(0, [0.5], weights=[1.0]))
    assert got[1] == pytest.approx([-4 / 5], rel=1e-6)


def test_where_a_sample_is_alone_it_has_no_baseline() -> None:
    got = rows("optimal_token_baseline", sure(1, [0.5, 0.5, 0.5]), sure(0, [0.5]))
    assert got[0] == pytest.approx([0.5, 0.0, 0.0])


def test_without_any_energy_the_plain_mean_is_the_baseline() -> None:
    assert rows("optimal_token_baseline", sure(1, [1.0]), sure(0, [1.0])) == [[0.5], [-0.5]]


def test_tir_compares_the_nth_sampled_tokens() -> None:
    tool_between = sure(1, [0.5, 0.3, 0.3, 0.5], mask=[1, 0, 0, 1])
    plain = sure(0, [0.5, 0.1])
    assert rows("tir_optimal_token_baseline", tool_between, plain)[0] == pytest.approx(
        [0.5, 0.0, 0.0, 1 - 1.0 / (1.0 + 2.12)], rel=1e-6
    )
    assert rows("optimal_token_baseline", tool_between, plain)[0] == pytest.approx([0.5, 0, 0, 0])
