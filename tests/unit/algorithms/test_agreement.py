from __future__ import annotations

import math

import numpy as np
import pytest

from argosy.algorithms.agreement import rollout_agreement


def test_equal_log_probs_agree() -> None:
    log_probs = np.log(np.array([0.5, 0.25, 0.9]))
    metrics = rollout_agreement(log_probs, log_probs)
    assert metrics["training/rollout_probs_diff_max"] == 0.0
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(1.0)


def test_difference_is_of_probabilities() -> None:
    metrics = rollout_agreement(np.log([0.5, 0.2]), np.log([0.4, 0.2]))
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.1)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.05)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(0.05)


def test_nothing_is_made_up() -> None:
    assert rollout_agreement(np.zeros(0), np.zeros(0)) == {}
    constant = rollout_agreement(np.log([0.5, 0.5]), np.log([0.4, 0.2]))
    assert "training/rollout_actor_probs_pearson_corr" not in constant
    assert all(math.isfinite(value) for value in constant.values())
