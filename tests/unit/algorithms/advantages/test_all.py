"""What holds for every estimator, against references written as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms.advantages import ESTIMATORS, AdvantageOptions, estimator
from argosy.algorithms.catalog import ADVANTAGES
from argosy.types.errors import ConfigError
from support.advantage_references import OPTIONS, REFERENCES, Rows, Sample, batches, inputs_of

GROUPED = sorted(name for name, info in ADVANTAGES.items() if "group" in info.needs)
GROUPWISE = sorted(set(GROUPED) - {"reinforce_plus_plus_baseline", "gpg", "gdpo"})  # nothing spans groups
every_estimator = pytest.mark.parametrize("name", sorted(ESTIMATORS))


def estimate(name: str, samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    result = estimator(name)(inputs_of(samples), options)
    assert result.advantages.values.dtype == np.float32
    assert all(map(math.isfinite, result.metrics.values()))
    return [[float(x) for x in row] for row in result.advantages]


def assert_same(name: str, got: Rows, expected: Rows) -> None:
    assert [len(row) for row in got] == [len(row) for row in expected], name
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-5, err_msg=name)


def test_catalog_registry_and_references_agree() -> None:
    assert set(ADVANTAGES) == set(ESTIMATORS) == set(REFERENCES)


# One batch for all estimators in turn: drawing it costs more than the arithmetic.


@settings(max_examples=80, deadline=None)
@given(batch=batches(), options=OPTIONS)
def test_equals_the_loops_from_the_paper(batch: list[Sample], options: AdvantageOptions) -> None:
    for name in ESTIMATORS:
        assert_same(name, estimate(name, batch, options), REFERENCES[name](batch, options))


@settings(max_examples=30, deadline=None)
@given(batch=batches(), options=OPTIONS, data=st.data())
def test_order_of_samples_is_nothing(batch: list[Sample], options: AdvantageOptions, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    for name in ESTIMATORS:
        straight = estimate(name, batch, options)
        shuffled = estimate(name, [batch[i] for i in order], options)
        assert_same(name, shuffled, [straight[i] for i in order])


@settings(max_examples=30, deadline=None)
@given(batch=batches(), options=OPTIONS, data=st.data())
def test_padding_is_nothing(batch: list[Sample], options: AdvantageOptions, data: st.DataObject) -> None:
    """Tokens that are not trained, of other people's or of padding, and empty responses leave the rest as it is."""
    places = [data.draw(st.lists(st.integers(0, len(sample.mask)), max_size=2)) for sample in batch]
    inside, behind = list(batch), list(batch)
    for i, chosen in enumerate(places):
        for place in chosen:
            inside[i] = inside[i].padded(place)
            behind[i] = behind[i].padded(len(behind[i].mask))
    for name in ESTIMATORS:  # optimal_token_baseline compares places in the response, so they must not move
        padded = [*(behind if name == "optimal_token_baseline" else inside)]
        padded.append(Sample("a", [], [], judged=False, baseline=math.nan))
        before, after = estimate(name, batch, options), estimate(name, padded, options)
        assert_same(name, trained_only(after[:-1], padded[:-1]), trained_only(before, batch))
        for row, sample in zip(after, padded, strict=True):
            assert all(row[t] == 0.0 for t in range(len(row)) if t not in sample.trained)


def trained_only(rows: Rows, samples: Sequence[Sample]) -> Rows:
    return [[row[t] for t in sample.trained] for row, sample in zip(rows, samples, strict=True)]


@settings(max_examples=30, deadline=None)
@given(batch=batches(), options=OPTIONS)
def test_groups_may_come_in_any_batches(batch: list[Sample], options: AdvantageOptions) -> None:
    for name in GROUPWISE:
        whole = estimate(name, batch, options)
        for group in {sample.group for sample in batch}:
            members = [i for i, sample in enumerate(batch) if sample.group == group]
            if len(members) > 1:
                alone = estimate(name, [batch[i] for i in members], options)
                assert_same(name, alone, [whole[i] for i in members])


def test_groupwise_estimators_are_the_expected_ones() -> None:
    assert GROUPWISE == [
        "dr_grpo", "grpo", "grpo_passk", "opo", "optimal_token_baseline", "rloo", "tir_optimal_token_baseline",
    ]  # fmt: skip


@every_estimator
def test_an_empty_batch_is_empty(name: str) -> None:
    inputs = replace(inputs_of([]), reward_parts={"right": np.zeros(0)})
    empty = inputs.token_rewards
    inputs = replace(inputs, values=empty, old_log_probs=empty, sum_pi_squared=empty)
    result = estimator(name)(inputs, AdvantageOptions())
    assert len(result.advantages) == 0


def one_token(group: str, reward: float, judged: bool = True) -> Sample:
    return Sample(group, [reward], [1], judged, [0.0], [-1.0], [0.3], [], 0.0, {"right": reward})


@pytest.mark.parametrize("name", GROUPED)
def test_b1_b2_an_all_singleton_batch_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: got a batch of 3 samples from 3 prompts.*rollout.n ≥ 2"):
        estimate(name, [one_token("a", 1), one_token("b", 0), one_token("c", 0.7)], AdvantageOptions())


@pytest.mark.parametrize("name", GROUPED)
def test_b1_a_singleton_beside_a_group_has_deviation_zero(name: str) -> None:
    rows = estimate(name, [*(one_token("a", r) for r in (1, 0, 0)), one_token("b", 0.7)], AdvantageOptions())
    assert all(math.isfinite(row[0]) for row in rows)
    assert rows[3][0] == pytest.approx(0.0, abs=1e-6)  # a's deviations sum to 0, so whitening leaves b's 0 in place


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("by_std", [True, False])
def test_b3_rounding_is_not_spread(name: str, by_std: bool) -> None:
    third = np.float32(0.3)
    noisy = [float(third)] * 3 + [float(np.nextafter(third, np.float32(1)))]
    for rewards in (noisy, [1.0] * 4):
        rows = estimate(name, [one_token("a", r) for r in rewards], AdvantageOptions(norm_adv_by_std_in_grpo=by_std))
        assert rows == [[0.0]] * 4


@pytest.mark.parametrize("name", GROUPED)
def test_b3_groups_that_say_nothing_are_counted(name: str) -> None:
    batch = [*(one_token("a", 1) for _ in range(2)), one_token("b", 1), one_token("b", 0), one_token("c", 1)]
    batch += [one_token("d", 1, judged=False) for _ in range(2)]
    metrics = estimator(name)(inputs_of(batch), AdvantageOptions()).metrics
    assert metrics["critic/groups/zero_spread_fraction"] == 0.25
    assert metrics["critic/groups/singleton_fraction"] == 0.25
    assert metrics["critic/groups/unjudged_fraction"] == 0.25


@every_estimator
def test_g1_nobody_judged_means_no_gradient(name: str) -> None:
    rows = estimate(name, [one_token("a", math.nan, judged=False)] * 3, AdvantageOptions())
    assert rows == [[0.0]] * 3


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("gae", "values", "adv_estimator=gae needs a critic's values: set critic.enable=true"),
        ("remax", "baseline", "adv_estimator=remax needs the reward of a greedy answer"),
        ("optimal_token_baseline", "old_log_probs", "optimal_token_baseline needs old_log_probs and sum_pi_squared"),
        ("tir_optimal_token_baseline", "sum_pi_squared", "tir_optimal_token_baseline needs old_log_probs"),
        ("gdpo", "reward_parts", "adv_estimator=gdpo needs rewards with names"),
    ],
)
def test_a_missing_input_is_named(name: str, column: str, message: str) -> None:
    inputs = replace(inputs_of([one_token("a", 1), one_token("a", 0)]), **{column: None})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        estimator(name)(inputs, AdvantageOptions())


def test_a_column_of_other_responses_is_refused() -> None:
    inputs = inputs_of([one_token("a", 1), one_token("a", 0)])
    other = inputs_of([Sample("a", [0, 0], [1, 1])]).token_rewards
    with pytest.raises(ValueError, match="2 tokens in 1 responses for a mask of 2 tokens in 2"):
        estimator("gae")(replace(inputs, values=other), AdvantageOptions())
