from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms import catalog
from argosy.algorithms.rollout_correction.correct import Correction, correct
from argosy.algorithms.rollout_correction.rejection import DIVERGENCES, OVER
from argosy.algorithms.rollout_correction.thresholds import (
    REJECTION_NAMES,
    WEIGHT_LEVELS,
    CorrectionRules,
    RejectionRule,
    WeightRule,
)
from argosy.algorithms.rollout_correction.weights import WEIGHTS
from argosy.types.ragged import Ragged
from unit.algorithms.rollout_correction import reference


@dataclass(frozen=True)
class Case:
    """Log-probs of a batch, as rows."""

    old: list[list[float]]
    rollout: list[list[float]]
    masks: list[list[int]]

    def run(self, rules: CorrectionRules, dtype: type = np.float64) -> Correction:
        return correct(
            Ragged.from_rows(self.old, dtype), Ragged.from_rows(self.rollout, dtype),
            Ragged.from_rows(self.masks, np.int8), rules,
        )  # fmt: skip


LOG_PROBS = st.floats(-12, -0.01)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))

    def rows(values: st.SearchStrategy[float]) -> list[list[float]]:
        return [draw(st.lists(values, min_size=n, max_size=n)) for n in lengths]

    old = rows(LOG_PROBS)
    near = draw(st.booleans())
    shifts = rows(st.floats(-0.2, 0.2) if near else st.floats(-30, 30))
    rollout = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(old, shifts, strict=True)]
    masks = [draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) for n in lengths]
    return Case(old, rollout, masks)


@st.composite
def weight_rules(draw: st.DrawFn) -> WeightRule:
    upper = draw(st.floats(1.01, 10))
    lower = draw(st.none() | st.floats(0.1, 0.99))
    return WeightRule(draw(st.sampled_from(WEIGHT_LEVELS)), upper, lower, draw(st.booleans()))


@st.composite
def rejection_rules(draw: st.DrawFn) -> tuple[RejectionRule, ...]:
    names = draw(st.lists(st.sampled_from(REJECTION_NAMES), max_size=3, unique=True))
    uppers = [draw(st.floats(0.001, 3)) for _ in names]
    return tuple(
        RejectionRule(name, -upper if name.endswith("k1") else -math.inf, upper)
        for name, upper in zip(names, uppers, strict=True)
    )


@settings(max_examples=150, deadline=None)
@given(cases(), weight_rules(), rejection_rules())
def test_equals_the_loops(case: Case, weights: WeightRule, rejections: tuple[RejectionRule, ...]) -> None:
    found = case.run(CorrectionRules(weights, rejections))
    logs = reference.ratios(case.old, case.rollout, case.masks)
    raw, bounded, applied = reference.weights(
        logs, weights.level, weights.upper, weights.lower, weights.batch_normalize
    )
    kept = [reference.keeps(row, [(r.name, r.lower, r.upper) for r in rejections]) for row in logs]
    assert found.weights is not None
    for row, (got, mask, new_mask) in enumerate(
        zip(found.weights, case.masks, found.response_mask, strict=True)
    ):  # fmt: skip
        trained = [place for place, m in enumerate(mask) if m]
        assert got[trained].tolist() == pytest.approx(applied[row], rel=1e-6)
        assert new_mask[trained].tolist() == [int(k) for k in kept[row]]
        assert not got[[place for place, m in enumerate(mask) if not m]].any()
        assert not new_mask[[place for place, m in enumerate(mask) if not m]].any()
    if not any(map(any, case.masks)):
        assert found.metrics == {}
        return
    for name, value in reference.divergences(case.old, case.rollout, case.masks).items():
        assert found.metrics[f"rollout_corr/{name}"] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    flat = [v for row in bounded for v in row]
    metric = {name.removeprefix("rollout_corr/rollout_"): value for name, value in found.metrics.items()}
    assert metric["is_mean"] == pytest.approx(reference.mean(flat))
    square = reference.mean([v * v for v in flat])
    share = reference.mean(flat) ** 2 / square if square else 0.0
    assert metric["is_eff_sample_size"] == pytest.approx(share)
    assert metric["is_max"] == pytest.approx(max(v for row in raw for v in row))
    assert metric["is_min"] == pytest.approx(min(v for row in raw for v in row))
    if rejections:
        lost = [not k for row in kept for k in row]
        assert metric["rs_masked_fraction"] == pytest.approx(sum(lost) / len(lost))
        hurt = [not all(row) for row in kept if row]
        assert metric["rs_seq_masked_fraction"] == pytest.approx(sum(hurt) / len(hurt))


@settings(max_examples=60, deadline=None)
@given(cases(), weight_rules(), rejection_rules(), st.randoms(use_true_random=False))
def test_order_and_masked_tokens_do_not_matter(
    case: Case, weights: WeightRule, rejections: tuple[RejectionRule, ...], random: object
) -> None:
    """Sequences in another order, with NaN and -inf where nothing is trained, and with more such tokens appended."""
    rules = CorrectionRules(weights, rejections)
    plain = case.run(rules)
    order = list(range(len(case.old)))
    random.shuffle(order)  # type: ignore[attr-defined]
    pad = [math.nan, -math.inf]

    def spoilt(rows: list[list[float]]) -> list[list[float]]:
        return [[v if m else math.nan for v, m in zip(rows[i], case.masks[i], strict=True)] + pad for i in order]

    changed = Case(spoilt(case.old), spoilt(case.rollout), [[*case.masks[i], 0, 0] for i in order]).run(rules)
    assert plain.weights is not None
    assert changed.weights is not None
    for new, old in enumerate(order):
        length = len(case.old[old])
        assert changed.weights[new][:length].tolist() == pytest.approx(plain.weights[old].tolist(), rel=1e-6)
        assert changed.response_mask[new][:length].tolist() == plain.response_mask[old].tolist()
    assert changed.metrics.keys() == plain.metrics.keys()
    for name, value in plain.metrics.items():
        assert changed.metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_equal_policies_are_left_alone() -> None:
    rows = [[-1.0, -2.0, -0.5], [-3.0]]
    rules = CorrectionRules(
        WeightRule("sequence", 2.0), tuple(RejectionRule(n, -1e-9, 1e-9) for n in REJECTION_NAMES)
    )  # fmt: skip
    found = Case(rows, rows, [[1, 1, 1], [1]]).run(rules, np.float32)
    assert found.weights is not None
    assert found.weights.values.tolist() == [1.0] * 4
    assert found.response_mask.values.tolist() == [1] * 4
    assert found.metrics["rollout_corr/kl"] == found.metrics["rollout_corr/chi2_seq"] == 0.0
    assert found.metrics["rollout_corr/rollout_is_eff_sample_size"] == 1.0
    assert found.metrics["rollout_corr/ppl_ratio"] == 1.0


def test_icepop_is_zero_outside_its_band_and_truncation_is_not() -> None:
    case = Case([[math.log(0.1), 0.0, math.log(4.0)]], [[0.0, 0.0, 0.0]], [[1, 1, 1]])
    band = case.run(CorrectionRules(WeightRule("token", 2.0, 0.5)))
    truncated = case.run(CorrectionRules(WeightRule("token", 2.0)))
    assert band.weights is not None
    assert truncated.weights is not None
    assert band.weights.values.tolist() == [0.0, 1.0, 0.0]
    assert truncated.weights.values.tolist() == pytest.approx([0.1, 1.0, 2.0])
    assert band.metrics["rollout_corr/rollout_is_oob_ratio"] == pytest.approx(2 / 3)


def test_every_metric_by_hand() -> None:
    """Ratios (¼, 1, 4) and (3) with a threshold of 2, so weights (¼, 1, 2) and (2); the token of ratio 9 is masked."""
    case = Case(
        [[math.log(0.25), 0.0, math.log(4.0)], [math.log(3.0), math.log(9.0)]],
        [[0.0] * 3, [0.0] * 2],
        [[1] * 3, [1, 0]],
    )
    rejections = (RejectionRule("token_k2", -math.inf, 0.5), RejectionRule("seq_sum_k1", -1.0, 1.0))
    found = case.run(CorrectionRules(WeightRule("token", 2.0, batch_normalize=True), rejections)).metrics
    first = (0.25 + 1 + 2) / 3  # mean weight of the first sequence; of the second it is 2, and before truncation 3
    k2 = [0.5 * math.log(ratio) ** 2 for ratio in (0.25, 1, 4, 3)]
    expected = {
        "is_mean": 5.25 / 4,
        "is_std": math.sqrt((0.25**2 + 1 + 4 + 4) / 4 - (5.25 / 4) ** 2),
        "is_max": 4.0,
        "is_min": 0.25,
        "is_eff_sample_size": 5.25**2 / 4 / (0.25**2 + 1 + 4 + 4),
        "is_ratio_fraction_high": 2 / 4,
        "is_ratio_fraction_low": 1 / 4,  # below ½
        "is_seq_mean": (first + 2) / 2,
        "is_seq_std": (2 - first) / math.sqrt(2),
        "is_seq_max": 2.0,
        "is_seq_min": first,
        "is_seq_max_deviation": 1.0,
        "is_seq_fraction_high": 1 / 2,
        "is_seq_fraction_low": 0.0,
        "is_batch_norm_factor": 5.25 / 4,
        "rs_token_k2_mean": sum(k2) / 4,
        "rs_token_k2_max": k2[0],
        "rs_token_k2_min": 0.0,
        "rs_token_k2_fraction_high": 3 / 4,
        "rs_token_k2_fraction_low": 0.0,
        "rs_token_k2_masked_fraction": 3 / 4,
        "rs_token_k2_seq_masked_fraction": 1.0,
        "rs_seq_sum_k1_mean": -math.log(3) / 2,
        "rs_seq_sum_k1_max": 0.0,
        "rs_seq_sum_k1_min": -math.log(3),
        "rs_seq_sum_k1_fraction_high": 0.0,
        "rs_seq_sum_k1_fraction_low": 1 / 2,
        "rs_seq_sum_k1_masked_fraction": 1 / 4,
        "rs_seq_sum_k1_seq_masked_fraction": 1 / 2,
        "rs_masked_fraction": 3 / 4,
        "rs_seq_masked_fraction": 1.0,
    }
    prefix = "rollout_corr/rollout_"
    names = ("is_", "rs_")
    shown = {key.removeprefix(prefix): v for key, v in found.items() if key.removeprefix(prefix).startswith(names)}
    assert shown == pytest.approx(expected)


def test_enormous_ratios_stay_finite() -> None:
    case = Case([[-1.0, -1e4]], [[-1e4, -1.0]], [[1, 1]])
    for level in WEIGHT_LEVELS:
        found = case.run(CorrectionRules(WeightRule(level, 2.0, batch_normalize=True)))
        assert all(math.isfinite(value) for value in found.metrics.values())


def test_the_catalog_lists_what_there_is() -> None:
    assert set(WEIGHTS) == set(WEIGHT_LEVELS)
    assert set(WEIGHTS) | set(REJECTION_NAMES) == set(catalog.ROLLOUT_CORRECTION)
    for name in REJECTION_NAMES:
        rule = RejectionRule(name, 0, 1)
        assert rule.divergence in DIVERGENCES
        assert rule.over == "token" or rule.over in OVER
