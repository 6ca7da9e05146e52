from __future__ import annotations

import statistics

import pytest

from argosy.controller.validation_metrics import (
    ValidationSample,
    paired_difference,
    validation_metrics,
    wilson_interval,
)


def test_one_answer_per_prompt_gives_the_mean() -> None:
    samples = [ValidationSample("gsm8k", str(i), {"acc": float(i < 3), "reward": 2.0}) for i in range(4)]
    assert validation_metrics(samples) == {"val-core/gsm8k/acc/mean@1": 0.75, "val-aux/gsm8k/reward/mean@1": 2.0}


def test_several_answers_per_prompt() -> None:
    answers = [(1.0, "7"), (0.0, "5"), (0.0, "5"), (1.0, "7")]
    samples = [ValidationSample("s", "q", {"reward": score}, pred) for score, pred in answers]
    metrics = validation_metrics(samples)
    assert metrics["val-core/s/reward/mean@4"] == 0.5
    assert metrics["val-aux/s/reward/std@4"] == pytest.approx(statistics.stdev([1, 0, 0, 1]))
    # Exact expectations of the bootstrap: P(at least one of n draws is right) = 1 - 2^-n.
    assert metrics["val-aux/s/reward/best@2/mean"] == pytest.approx(0.75, abs=0.05)
    assert metrics["val-core/s/reward/best@4/mean"] == pytest.approx(1 - 2**-4, abs=0.03)
    assert metrics["val-aux/s/reward/worst@4/mean"] == pytest.approx(2**-4, abs=0.03)
    assert "val-core/s/reward/maj@4/mean" in metrics


def test_majority_follows_the_votes() -> None:
    samples = [ValidationSample("s", "q", {"acc": float(pred == "7")}, pred) for pred in ["7", "7", "7", "7", "7", "1"]]
    metrics = validation_metrics(samples)
    assert metrics["val-core/s/acc/maj@6/mean"] > metrics["val-core/s/acc/mean@6"]
    assert [name for name in metrics if "maj@" in name and name.endswith("mean")] == [
        "val-aux/s/acc/maj@2/mean",
        "val-aux/s/acc/maj@4/mean",
        "val-core/s/acc/maj@6/mean",
    ]


def test_sources_do_not_mix() -> None:
    samples = [ValidationSample("a", "q", {"reward": 1.0}), ValidationSample("b", "q", {"reward": 0.0})]
    metrics = validation_metrics(samples)
    assert metrics == {"val-core/a/reward/mean@1": 1.0, "val-core/b/reward/mean@1": 0.0}


def test_wilson_interval_known_values() -> None:
    assert wilson_interval(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson_interval(0, 10)[0] == 0.0


def test_paired_difference_uses_common_prompts() -> None:
    mean, half = paired_difference({"a": 0, "b": 0, "c": 1}, {"a": 1, "b": 0, "d": 1})
    assert mean == 0.5
    assert half == pytest.approx(1.96 * statistics.stdev([1, 0]) / 2**0.5)
