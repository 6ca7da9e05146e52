"""The reward role: the scorers themselves, and their client behind a real server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions
from argosy.types.errors import InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, Scored, ScoreRequest
from contract.forms import DEADLINE_S, Form

CUSTOM = """
import time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if solution_str == "raise":
        raise KeyError("boom")
    if solution_str == "hang":
        time.sleep(60)
    if solution_str == "nan":
        return float("nan")
    if solution_str == "parts":
        return {"score": 0.0, "acc": True, "note": "zero is a score", "count": 3}
    return float(extra_info["bonus"]) + (solution_str == ground_truth["answer"])
"""


@pytest.fixture(scope="module")
def scorers() -> Iterator[RewardScorers]:
    core = RewardScorers(RewardOptions(PoolOptions(worker_count=1, timeout_s=10)))
    yield core
    core.shutdown()


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardScorers]:
    path: Path = tmp_path_factory.mktemp("custom") / "score.py"
    path.write_text(CUSTOM)
    function = CustomFunction(str(path), "compute_score", {})
    core = RewardScorers(RewardOptions(PoolOptions(worker_count=1, timeout_s=2), function))
    yield core
    core.shutdown()


def item(position: int, response: str, truth: object, source: str = "openai/gsm8k", **extra: object) -> ScoreRequest:
    return ScoreRequest(SampleId(0, position, 0), source, "Why?", response, truth, extra)


async def outcomes(form: Form, core: RewardScorers, items: list[ScoreRequest]) -> dict[int, Outcome]:
    results = await (await form.reward(core)).score(items, deadline_s=DEADLINE_S)
    assert len(results) == len(items)
    return {result.sample_id.position: result.outcome for result in results}


async def test_scores_are_the_same_and_matched_by_id(form: Form, scorers: RewardScorers) -> None:
    items = [item(position, f"It is #### {position}", str(position - position % 2)) for position in range(30)]
    expected = {result.sample_id: result.outcome for result in await scorers.score(items, deadline_s=DEADLINE_S)}
    random.Random(0).shuffle(items)
    results = await (await form.reward(scorers)).score(items, deadline_s=DEADLINE_S)
    assert {result.sample_id: result.outcome for result in results} == expected
    by_position = {sample.position: outcome for sample, outcome in expected.items()}
    assert isinstance(by_position[4], Scored)
    assert isinstance(by_position[5], Scored)
    assert (by_position[4].score, by_position[5].score) == (1.0, 0.0)


async def test_an_unknown_data_source_is_failed_never_zero(form: Form, scorers: RewardScorers) -> None:
    found = await outcomes(form, scorers, [item(0, "#### 1", "1"), item(1, "#### 1", "1", source="nowhere/nothing")])
    assert isinstance(found[0], Scored)
    failed = found[1]
    assert isinstance(failed, Failed)
    assert failed.reason == "unknown_data_source"
    assert "nowhere/nothing" in failed.message


async def test_a_sample_twice_is_refused(form: Form, scorers: RewardScorers) -> None:
    reward = await form.reward(scorers)
    with pytest.raises(InvalidInputError, match="twice"):
        await reward.score([item(0, "1", "1"), item(0, "2", "1")], deadline_s=DEADLINE_S)


async def test_g11_what_a_custom_function_does_is_an_outcome(form: Form, custom: RewardScorers) -> None:
    truth = {"answer": "42", "alternatives": ["forty-two"]}
    found = await outcomes(
        form,
        custom,
        [
            item(0, "42", truth, bonus=0.25),
            item(1, "41", truth, bonus=0),
            item(2, "raise", truth, bonus=0),
            item(3, "nan", truth, bonus=0),
            item(4, "parts", truth, bonus=0),
            item(5, "hang", truth, bonus=0),
        ],
    )
    assert isinstance(found[0], Scored)
    assert found[0].score == 1.25
    assert isinstance(found[1], Scored)
    assert found[1].score == 0.0  # F11: zero is a score
    for position, reason in ((2, "exception"), (3, "bad_return"), (5, "timeout")):
        failed = found[position]
        assert isinstance(failed, Failed)
        assert failed.reason == reason
    parts = found[4]
    assert isinstance(parts, Scored)
    assert parts.score == 0.0
    assert {"acc": True, "note": "zero is a score", "count": 3}.items() <= dict(parts.parts).items()
    assert not any(isinstance(outcome, Abstained) for outcome in found.values())


async def test_nothing_asked_nothing_answered(form: Form, scorers: RewardScorers) -> None:
    assert await outcomes(form, scorers, []) == {}


async def test_more_items_than_a_request_holds(form: Form, scorers: RewardScorers) -> None:
    items = [item(position, f"#### {position}", str(position)) for position in range(600)]
    found = await outcomes(form, scorers, items)
    assert len(found) == 600
    assert all(isinstance(outcome, Scored) and outcome.score == 1.0 for outcome in found.values())


async def test_capabilities(form: Form, scorers: RewardScorers, custom: RewardScorers) -> None:
    for core in (scorers, custom):
        reward = await form.reward(core)
        assert await reward.capabilities() == await core.capabilities()
    assert (await custom.capabilities()).data_sources == ("*",)
