"""Statistics of whole mini-batches: which tokens clip_cov and kl_cov take, and bypass_mode's mean weight."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms.losses import LOSSES, WHOLE_BATCH, MiniBatch, needs_mini_batch
from argosy.algorithms.losses.mini_batch import covariance
from argosy.algorithms.losses.token_keys import token_keys
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig

Row = list[tuple[float, float, float, int]]
"""(log π, log π_old, A, mask) of a sequence's tokens."""

ROWS = st.lists(
    st.lists(
        st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3, allow_subnormal=False), st.integers(0, 1)),
        max_size=6,
    ),
    min_size=1,
    max_size=6,
)


def batch_of(rows: dict[int, Row], step: int = 0) -> MiniBatch:
    """Rows by their place in the data."""
    tokens = np.array([token for row in rows.values() for token in row], np.float64).reshape(-1, 4)
    mask = Ragged.from_rows([[int(token[3]) for token in row] for row in rows.values()], np.int8)
    keys = token_keys([SampleId(0, place, 0) for place in rows], mask.lengths, 7, step)
    return MiniBatch(tokens[:, 0], tokens[:, 1], tokens[:, 2], mask, keys)


def config_of(mode: str, **options: float | str | bool) -> LossConfig:
    return LossConfig(loss_mode=mode, options=options)


def column_of(batch: MiniBatch, config: LossConfig) -> list[float]:
    return [float(value) for value in WHOLE_BATCH[config.loss_mode](batch, config)]


def covariances(rows: list[Row]) -> list[float]:
    """By the definition, over trained tokens; -inf elsewhere."""
    kept = [token for row in rows for token in row if token[3]]
    advantage = math.fsum(token[2] for token in kept) / max(len(kept), 1)
    log_prob = math.fsum(token[0] for token in kept) / max(len(kept), 1)
    return [(token[2] - advantage) * (token[0] - log_prob) if token[3] else -math.inf for row in rows for token in row]


@settings(deadline=None, max_examples=50)
@given(ROWS)
def test_covariance_equals_the_definition(rows: list[Row]) -> None:
    found = covariance(batch_of(dict(enumerate(rows))))
    assert found.tolist() == pytest.approx(covariances(rows), abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(ROWS, st.floats(0.01, 1.0))
def test_kl_cov_takes_the_largest(rows: list[Row], share: float) -> None:
    values = covariances(rows)
    trained = sum(math.isfinite(value) for value in values)
    found = column_of(batch_of(dict(enumerate(rows))), config_of("kl_cov", kl_cov_ratio=share))
    taken = [value for value, mark in zip(values, found, strict=True) if mark]
    assert len(taken) == (max(1, int(share * trained)) if trained else 0)
    left = [value for value, mark in zip(values, found, strict=True) if not mark]
    assert min(taken, default=math.inf) >= max(left, default=-math.inf) - 1e-12


def test_kl_cov_takes_as_many_of_equals_as_fit() -> None:
    """One token has the largest covariance, four share the next one: of these the two with the smallest keys."""
    rows: dict[int, Row] = {0: [(-1.0, -1.0, 4.0, 1)], 1: [(-3.0, -3.0, 0.0, 1)] * 4, 2: [(-2.0, -2.0, 1.0, 1)] * 5}
    values = covariances(list(rows.values()))
    assert values[0] > values[1] == values[4] > values[5]
    batch = batch_of(rows)
    smallest_keys = sorted(range(1, 5), key=lambda place: int(batch.keys[place]))[:2]
    found = column_of(batch, config_of("kl_cov", kl_cov_ratio=0.3))
    assert [place for place, mark in enumerate(found) if mark] == sorted([0, *smallest_keys])


def test_clip_cov_of_an_enormous_ratio() -> None:
    rows: dict[int, Row] = {0: [(-1.0, -1e4, 1.0, 1), (-1.0, -1.0, 2.0, 1), (-2.0, -2.0, 1.0, 1)]}
    with np.errstate(all="raise"):
        found = column_of(batch_of(rows), config_of("clip_cov", clip_cov_ratio=1.0, clip_cov_lb=-9.0, clip_cov_ub=9.0))
    assert found == [0.0, 1.0, 1.0]  # the first one is clipped already


@settings(deadline=None, max_examples=60)
@given(ROWS, st.floats(0.01, 1.0), st.floats(-2, 0), st.floats(0.1, 3))
def test_clip_cov_draws_from_the_band_what_is_not_clipped(
    rows: list[Row], share: float, low: float, high: float
) -> None:
    config = config_of("clip_cov", clip_cov_ratio=share, clip_cov_lb=low, clip_cov_ub=high)
    tokens = [token for row in rows for token in row]
    inside = []
    for value, (new, old, advantage, mask) in zip(covariances(rows), tokens, strict=True):
        ratio = math.exp(new - old)
        bounded = min(max(ratio, 1 - config.clip_ratio_low), 1 + config.clip_ratio_high)
        inside.append(low < value < high and not ratio * advantage > bounded * advantage and bool(mask))
    found = column_of(batch_of(dict(enumerate(rows))), config)
    assert all(candidate for candidate, mark in zip(inside, found, strict=True) if mark)
    trained = sum(token[3] for token in tokens)
    assert sum(found) == min(sum(inside), max(1, int(share * trained)))


@pytest.mark.parametrize(
    "config",
    [
        config_of("kl_cov", kl_cov_ratio=0.3),
        config_of("clip_cov", clip_cov_ratio=0.3, clip_cov_lb=-9.0, clip_cov_ub=9.0),
        config_of("bypass_mode", loss_type="reinforce", rollout_is="sequence", rollout_is_batch_normalize=True),
    ],
    ids=lambda config: config.loss_mode,
)
@settings(deadline=None, max_examples=40)
@given(rows=ROWS, seed=st.integers(0, 99))
def test_the_order_of_rows_changes_nothing(config: LossConfig, rows: list[Row], seed: int) -> None:
    # Numbers on a grid: means are then exact in any order, and ties are many.
    grid: dict[int, Row] = {
        place: [(float(round(new)), float(round(old)), float(round(a)), mask) for new, old, a, mask in row]
        for place, row in enumerate(rows)
    }
    order = [int(place) for place in np.random.default_rng(seed).permutation(len(rows))]
    first, second = (by_place({place: grid[place] for place in places}, config) for places in (grid, order))
    assert second == {place: pytest.approx(first[place]) for place in second}


def by_place(rows: dict[int, Row], config: LossConfig) -> dict[int, list[float]]:
    batch = batch_of(rows)
    column = Ragged(WHOLE_BATCH[config.loss_mode](batch, config), batch.response_mask.offsets)
    return {place: column[number].tolist() for number, place in enumerate(rows)}


def test_another_step_or_seed_draws_others() -> None:
    rows: dict[int, Row] = {place: [(-1.0 - t / 10, -1.0 - t / 10, 1.0, 1) for t in range(50)] for place in range(4)}
    config = config_of("clip_cov", clip_cov_ratio=0.1, clip_cov_lb=-9.0, clip_cov_ub=9.0)
    draws = [column_of(batch_of(rows, step), config) for step in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert [sum(draw) for draw in draws] == [20.0] * 3


def test_without_trained_tokens_nothing_is_taken() -> None:
    rows: dict[int, Row] = {0: [(-1.0, -1.0, 1.0, 0)] * 3, 1: []}
    for mode in ("clip_cov", "kl_cov"):
        assert column_of(batch_of(rows), config_of(mode)) == [0.0] * 3
    normalized = config_of("bypass_mode", loss_type="reinforce", rollout_is="token", rollout_is_batch_normalize=True)
    assert column_of(batch_of(rows), normalized) == [1.0] * 3


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_bypass_divides_by_the_mean_weight_of_the_whole_mini_batch(level: str) -> None:
    first: Row = [(-1.0, -1.5, 1.0, 1), (-1.0, -0.9, 1.0, 1), (-9.0, -1.0, 1.0, 0)]
    rows: dict[int, Row] = {0: first, 1: [(-1.0, -3.0, 1.0, 1)]}
    config = config_of("bypass_mode", loss_type="reinforce", rollout_is=level, rollout_is_batch_normalize=True)
    weights = {
        "token": [math.exp(0.5), math.exp(-0.1), 2.0],
        "sequence": [math.exp(0.4), 2.0],  # one for each sequence; e² is truncated at 2
    }[level]
    expected = sum(weights) / len(weights)
    assert column_of(batch_of(rows), config) == pytest.approx([expected] * 4)


def test_only_these_need_it() -> None:
    assert [mode for mode in LOSSES if needs_mini_batch(LossConfig(mode))] == ["clip_cov", "kl_cov"]
    weighted = config_of("bypass_mode", loss_type="reinforce", rollout_is="token")
    assert not needs_mini_batch(weighted)
    assert needs_mini_batch(
        dataclasses.replace(weighted, options={**weighted.options, "rollout_is_batch_normalize": True})
    )


SAMPLES = [SampleId(*parts) for parts in itertools.product((0, 1), (0, 7), (0, 1), (0, 1))]


def test_keys_name_tokens_and_nothing_else() -> None:
    lengths = np.arange(len(SAMPLES)) + 1
    keys = Ragged.from_lengths(token_keys(SAMPLES, lengths, 3, 5), lengths)
    assert len(np.unique(keys.values)) == len(keys.values)
    order = np.random.default_rng(0).permutation(len(SAMPLES))
    moved = token_keys([SAMPLES[row] for row in order], lengths[order], 3, 5)
    assert np.array_equal(moved, keys.take(order).values)
    longer = Ragged.from_lengths(token_keys(SAMPLES, lengths + 4, 3, 5), lengths + 4)
    assert all(np.array_equal(longer[row][: lengths[row]], keys[row]) for row in range(len(SAMPLES)))
    for other in ((3, 6), (4, 5), (5, 3), (3,), (3, 5, 0)):
        assert not np.isin(token_keys(SAMPLES, lengths, *other), keys.values).any()


def test_keys_are_uniform() -> None:
    keys = token_keys(SAMPLES, np.full(len(SAMPLES), 2000, np.int64), 0)
    counts = np.histogram(keys.astype(np.float64) / 2.0**64, bins=16, range=(0, 1))[0]
    spread = ((counts - len(keys) / 16) ** 2 / (len(keys) / 16)).sum()
    assert spread < 37.7  # χ² with 15 degrees of freedom: one in a thousand is above
