"""`argosy.reward.scorer_kwargs`: options of verifiers, for all rows of a data source."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from argosy.config import load
from argosy.reward.build import reward_options
from argosy.reward.core import RewardScorers
from argosy.types.errors import ConfigError
from argosy.types.ids import SampleId
from argosy.types.records import Scored, ScoreRequest

RESPONSE = "#### 57\nNo: \\boxed{58}."


def scores(*arguments: str) -> list[float]:
    """Of the right answer in a box, for gsm8k, for gsm8k with the row's own option, and for another data source."""
    scorers = RewardScorers(reward_options(load(("argosy.reward.worker_count=1", *arguments))))
    own = {"reward_kwargs": {"method": "marked"}}
    rows: tuple[tuple[str, dict[str, Any]], ...] = (
        ("openai/gsm8k", {}),
        ("openai/gsm8k", own),
        ("argosy/numeric_match", {}),
    )
    try:
        items = [
            ScoreRequest(SampleId(0, k, 0), source, "", RESPONSE, "58", extra) for k, (source, extra) in enumerate(rows)
        ]
        results = asyncio.run(scorers.score(items, deadline_s=60))
    finally:
        scorers.shutdown()
    return [result.outcome.score for result in results if isinstance(result.outcome, Scored)]


def test_scorer_kwargs() -> None:
    assert scores() == [1, 1, 1]
    assert scores("argosy.reward.scorer_kwargs={openai/gsm8k: {method: strict}}") == [0, 1, 1]
    length = "all: {penalties: {length: {weight: 0.25, longest: 5, buffer: 0}}}"
    assert scores(f"argosy.reward.scorer_kwargs={{{length}}}") == [0.75, 0.75, 0.75]
    both = f"argosy.reward.scorer_kwargs={{openai/gsm8k: {{method: strict}}, {length}}}"
    assert scores(both) == [-0.25, 0.75, 0.75]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{openai/gsm9k: {method: strict}}", "no verifier for data source 'openai/gsm9k'"),
        ("{openai/gsm8k: {methods: strict}}", "no option 'methods'; there are: method, penalties"),
        ("{openai/gsm8k: {method: lenient}}", "one of marked, strict, flexible, got 'lenient'"),
        ("{openai/gsm8k: strict}", "wants a mapping"),
        ("{all: {method: strict}}", "no option 'method'; there are: penalties"),
        ("{all: {penalties: {length: {weight: -1}}}}", "0 … 100, got -1"),
    ],
)
def test_wrong_scorer_kwargs_end_the_start(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match="scorer_kwargs") as error:
        RewardScorers(reward_options(load((f"argosy.reward.scorer_kwargs={value}",))))
    assert said in error.value.message
