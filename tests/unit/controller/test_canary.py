from __future__ import annotations

import logging

import pytest

from argosy.config import Config
from argosy.controller.canary import DISAGREEMENT, warn_of_disagreement

NAME = "training/rollout_probs_diff_mean"


@pytest.mark.parametrize(
    ("mean", "values", "warned"),
    [
        (DISAGREEMENT / 2, {}, False),
        (DISAGREEMENT * 2, {}, True),
        (DISAGREEMENT * 2, {"actor_rollout_ref.rollout.top_p": 0.9}, False),
        (DISAGREEMENT * 2, {"actor_rollout_ref.rollout.top_k": 20}, False),
        (DISAGREEMENT * 2, {"argosy.rollout.min_p": 0.1}, False),
        (DISAGREEMENT * 2, {"actor_rollout_ref.rollout.repetition_penalty": 1.1}, False),
    ],
)
def test_warns_only_of_what_should_agree(
    mean: float, values: dict[str, float], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_disagreement(Config().with_values(values), {NAME: mean}, 3)
    assert bool(caplog.records) is warned


@pytest.mark.parametrize(("staleness", "warned"), [(0.0, True), (2.0, False)])
def test_an_older_policy_may_differ(staleness: float, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    metrics = {NAME: DISAGREEMENT * 2, "staleness/max": staleness}
    with caplog.at_level(logging.WARNING):
        warn_of_disagreement(Config(), metrics, 3)
    assert bool(caplog.records) is warned
