"""reasoning-gym's own scorers, by the name of their dataset."""

from __future__ import annotations

import json
from typing import Any

import pytest
import reasoning_gym

from argosy.reward.verifiers import find_verifier
from argosy.types.records import Failed, Outcome, Scored


def row(name: str, **config: Any) -> tuple[str, dict[str, Any]]:
    """An entry as `argosy data make` writes it."""
    entry = reasoning_gym.create_dataset(name, size=1, seed=3, **config)[0]
    metadata = json.dumps(entry["metadata"], default=str)
    return entry["answer"], {"task": name, "question": entry["question"], "metadata": metadata}


def verify(solution: str, truth: Any, extra: dict[str, Any]) -> Outcome:
    verifier = find_verifier("reasoning_gym_scorer/any")
    assert verifier is not None
    verifier.prepare()
    return verifier.verify(solution, truth, extra)


@pytest.mark.parametrize("name", ["chain_sum", "word_ladder", "countdown", "sudoku", "maze", "game_of_life"])
def test_the_gold_answer_is_right_by_the_datasets_own_scorer(name: str) -> None:
    truth, extra = row(name)
    found = verify(f"<think>hm</think><answer>{truth}</answer>", truth, extra)
    assert isinstance(found, Scored)
    assert (found.score, found.parts["acc"], found.parts["rule"]) == (1.0, 1.0, "reasoning-gym")


def test_another_right_answer_is_right_and_a_wrong_one_is_not() -> None:
    metadata = {"numbers": [3, 4, 5], "target": 12, "expression": "3+4+5"}
    extra = {"task": "countdown", "question": "", "metadata": json.dumps(metadata)}
    right, wrong = (verify(f"Answer: {text}", "3+4+5", extra) for text in ("5+4+3", "5*4-3"))
    assert isinstance(right, Scored)
    assert right.score == 1.0
    assert isinstance(wrong, Scored)
    assert wrong.score < 0.1
    assert wrong.parts["acc"] == 0.0


def test_a_row_at_fault_is_failed_never_zero() -> None:
    truth, extra = row("chain_sum")
    for change, said in (
        ({"task": None}, "must name a dataset"),
        ({"task": "chain_some"}, "no dataset 'chain_some'"),
        ({"metadata": "{"}, "no JSON object"),
    ):
        found = verify("1", truth, {**extra, **change})
        assert isinstance(found, Failed)
        assert found.reason == "bad_ground_truth"
        assert said in found.message
