"""reasoning-gym's own scorers, by the name of their dataset."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from argosy.reward.verifiers import algebra, find_verifier
from argosy.reward.verifiers.gym_answers import (
    GUARDS,
    NEVER_EVALUATES,
    NOT_FOR_ANSWERS,
    READ_VERSIONS,
    is_arithmetic,
    refusal,
)
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


@pytest.mark.parametrize("name", ["chain_sum", "word_ladder", "countdown", "sudoku", "maze", "game_of_life", "rearc"])
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


EVALUATORS = {"countdown", "puzzle24", "binary_matrix", "spiral_matrix", "string_insertion", "n_queens"}
REFUSED = {"polynomial_multiplication", "simple_integration", "intermediate_integration", "bitwise_arithmetic"}


@pytest.mark.parametrize("name", sorted(EVALUATORS | REFUSED))
@pytest.mark.parametrize("shape", ["{}", "[{}]", "({})", "[[{}]]", "3 + {}", "'a' + {}", "[i for i in [{}]]"])
def test_no_text_of_the_policy_is_evaluated(name: str, shape: str, tmp_path: Path) -> None:
    path = tmp_path / "evaluated"
    text = shape.format(f"__import__('pathlib').Path('{path}').touch()")
    extra = {
        "task": name,
        "question": "",
        "metadata": {
            "numbers": [3],
            "target": 3,
            "valid_answers": [],
            "variable": "x",
            "integrand": "x",
            "problem": "3",
        },
    }
    found = verify(f"<answer>{text}</answer>", "3", extra)
    assert not path.exists()
    if name in REFUSED:
        assert isinstance(found, Failed)
        assert found.reason == "refused"
        assert f"reasoning_gym/{name}" in found.message
    else:
        assert isinstance(found, Scored)
        assert found.score < 0.1


@pytest.mark.parametrize(
    "text", ["9**9**9**9", "9* *9", "9" * 30, "(" * 100 + "3" + ")" * 100, "3; 4", "a + b", "3_0", "3!"]
)
def test_a11_only_short_arithmetic_is_evaluated(text: str) -> None:
    assert not is_arithmetic(text)


def test_literals_have_their_partial_credit_and_expressions_none() -> None:
    truth, extra = row("binary_matrix")
    literal = str([[int(cell) for cell in line.split()] for line in truth.splitlines()])
    scores = [verify(f"<answer>{text}</answer>", truth, extra) for text in (truth, literal, f"{literal} + []")]
    assert [found.score for found in scores if isinstance(found, Scored)] == [1.0, 0.1, 0.0]


def test_each_dataset_of_the_library_is_in_one_table() -> None:
    """A dataset that is new in the library is used only after somebody has read its scorer."""
    tables = [NEVER_EVALUATES, set(GUARDS), set(NOT_FOR_ANSWERS)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert set(reasoning_gym.factory.DATASETS) - {"composite"} == set().union(*tables)
    assert importlib.metadata.version("reasoning-gym") in READ_VERSIONS
    assert refusal("chain_sum", "99.0").startswith("is of reasoning-gym 99.0")
    assert "isn't known" in refusal("composite", "0.1.25")


@pytest.mark.parametrize("name", sorted(NEVER_EVALUATES))
def test_no_scorer_that_we_use_evaluates(name: str) -> None:
    dataset, _ = reasoning_gym.factory.DATASETS[name]
    source = inspect.getsource(dataset.score_answer)
    assert (
        re.search(r"\b(?:eval|exec|sympify|simplify|import_module|__import__)\(|(?:sp|sympy)\.|_expr\(", source) is None
    )


@pytest.mark.parametrize(
    ("name", "text"), [("complex_arithmetic", "nan"), ("prime_factorization", "2 and 3"), ("coin_flip", "nan")]
)
def test_an_answer_that_a_scorer_cannot_read_is_wrong(name: str, text: str) -> None:
    truth, extra = row(name)
    found = verify(f"<answer>{text}</answer>", truth, extra)
    assert isinstance(found, Scored), found
    assert found.score < 0.1


def test_a11_a_costly_answer_ends_in_its_own_child() -> None:
    """`Fraction("1e9999999999")` is one call of C code, which no signal handler interrupts."""
    truth, extra = row("coin_flip")
    with algebra.isolated():
        found = verify("<answer>1e9999999999</answer>", truth, extra)
        algebra.begin_sample()
        right = verify(f"<answer>{truth}</answer>", truth, extra)
    assert isinstance(found, Scored)
    assert (found.score, found.parts["rule"]) == (0.0, "costly")
    assert isinstance(right, Scored)
    assert right.score == 1.0
