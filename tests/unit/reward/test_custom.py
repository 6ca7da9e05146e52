"""Cases G1, G2, G11 for the user's own function, and what is said when it can't be used."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.reward.core import RewardScorers
from argosy.reward.custom import CustomFunction, LoadedFunction, outcome_of
from argosy.types.errors import ConfigError
from argosy.types.records import Abstained, Failed, Outcome, Scored, ScoreRequest

MakeScorers = Callable[..., RewardScorers]
MakeFunction = Callable[..., CustomFunction]
MakeRequest = Callable[..., ScoreRequest]

ECHO = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n    "


def call(function: CustomFunction, solution: str = "text", gold: Any = "gold") -> Outcome:
    sample = {"data_source": "my/source", "response_text": solution, "ground_truth": gold, "extra_info": {"index": 3}}
    return LoadedFunction(function).score(sample)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400, {"score": math.nan}])
def test_g1_nan_and_inf_are_refused_with_the_functions_name(value: Any) -> None:
    outcome = outcome_of(value, "compute_score of my_reward.py")
    assert isinstance(outcome, Failed)
    assert outcome.reason == "bad_return"
    assert "compute_score of my_reward.py returned" in outcome.message
    assert "finite" in outcome.message


@pytest.mark.parametrize("value", [None, {"score": None}, {"score": None, "acc": 1}])
def test_g1_none_abstains(value: Any) -> None:
    assert isinstance(outcome_of(value, "f"), Abstained)


class ZeroDimensionalTensor:
    """What torch.tensor(0.5) looks like; torch itself isn't needed here."""

    shape = ()

    def item(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.int64(3), 3.0),
        (np.array(0.5), 0.5),
        (ZeroDimensionalTensor(), 0.5),
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), 0.5),
        ({"score": np.float32(0.5)}, 0.5),
        (-1, -1.0),
    ],
)
def test_g2_numeric_types_are_converted(value: Any, score: float) -> None:
    assert outcome_of(value, "f") == Scored(score)


def test_g2_a_torch_scalar_is_converted() -> None:
    torch = pytest.importorskip("torch")
    assert outcome_of(torch.tensor(0.5), "f") == Scored(0.5)
    assert isinstance(outcome_of(torch.tensor([0.5]), "f"), Failed)


async def unawaited() -> float:
    return 1.0


def generator() -> Iterator[float]:
    yield 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: [1.0], "a list of 1"),
        (lambda: [1.0, 0.0, 1.0], "a list of 3"),
        (list, "a list of 0"),
        (lambda: (0.5, {"acc": 1}), "a tuple of 2"),
        (lambda: "1", "the str '1'"),
        (lambda: b"1", "the bytes b'1'"),
        (dict, 'a dict without "score" (its keys: none)'),
        (lambda: {"reward": 1.0}, "a dict without \"score\" (its keys: 'reward')"),
        (lambda: {"score": "1"}, 'as "score", returned the str'),
        (lambda: {"score": [1.0]}, "a list of 1"),
        (unawaited, "a coroutine that was never awaited"),
        (generator, "a generator"),
        (lambda: np.array([1.0]), "a ndarray of shape (1,)"),
        (lambda: np.ones((2, 2)), "a ndarray of shape (2, 2)"),
        (lambda: 1j, "a complex"),
        (object, "a object"),
        (lambda: set[float](), "a set of 0"),
    ],
)
def test_g2_everything_else_is_refused_by_name(make: Callable[[], Any], said: str) -> None:
    outcome = outcome_of(make(), "compute_score of f.py")
    assert isinstance(outcome, Failed)
    assert outcome.reason == "bad_return"
    assert outcome.message.startswith("compute_score of f.py")
    assert said in outcome.message


def test_g2_extra_keys_become_parts_whatever_they_hold() -> None:
    outcome = outcome_of(
        {"score": 1, "acc": True, "n": np.int32(2), "pred": "x", "l": [1, 2], "nan": math.nan, "o": {1}, 7: None}, "f"
    )
    assert outcome == Scored(
        1.0, {"acc": True, "n": 2.0, "pred": "x", "l": "[1, 2]", "nan": "NaN", "o": '"{1}"', "7": "null"}
    )
    itself: dict[str, Any] = {"score": 0}
    itself["me"] = itself
    assert isinstance(outcome_of(itself, "f"), Scored)


async def test_g2_results_of_one_batch_may_differ_in_shape(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    source = (
        "async def inner():\n    return 1.0\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    if solution_str == 'coroutine':\n        return inner()\n"
        "    return eval(solution_str)\n"
    )
    answers = ["[1.0]", "coroutine", "1", "{'score': 1, 'a': 2}", "{'score': 0, 'b': [1]}", "'1'", "None", "1/0"]
    results = await make_scorers(make_function(source)).score(
        [make_request(k, answer) for k, answer in enumerate(answers)], deadline_s=30
    )
    kinds = [type(result.outcome) for result in results]
    assert kinds == [Failed, Failed, Scored, Scored, Scored, Failed, Abstained, Failed]
    failures = [result.outcome.reason for result in results if isinstance(result.outcome, Failed)]
    assert failures == ["bad_return", "bad_return", "bad_return", "exception"]
    assert results[3].outcome == Scored(1.0, {"a": 2.0})


async def test_it_gets_what_verl_gives_and_may_be_async(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    source = (
        "import asyncio\n"
        "async def judge(data_source, solution_str, ground_truth, extra_info=None, *, bonus):\n"
        "    await asyncio.sleep(0)\n"
        "    score = bonus + extra_info['index']\n"
        "    return {'score': score, 'seen': f'{data_source}|{solution_str}|{ground_truth}'}\n"
    )
    scorers = make_scorers(make_function(source, name="judge", bonus=0.5))
    item = make_request(0, "sol\n\ud800ution", {"a": [1]}, "any/thing", {"index": np.int64(3), "more": np.arange(2)})
    [result] = await scorers.score([item], deadline_s=30)
    assert result.outcome == Scored(3.5, {"seen": "any/thing|sol\n\ud800ution|{'a': [1]}"})
    assert (await scorers.capabilities()).data_sources == ("*",)


async def test_prints_and_reads_do_not_disturb_the_protocol(
    make_scorers: MakeScorers,
    make_function: MakeFunction,
    make_request: MakeRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source = (
        "import os, sys, subprocess\nprint('while importing')\n"
        + ECHO
        + "print('x' * 300_000); os.write(1, b'raw'); assert sys.stdin.read() == ''\n"
        "    subprocess.run(['echo', '{\"id\": 1}'], check=True)\n    return 1\n"
    )
    results = await make_scorers(make_function(source)).score([make_request(k, "") for k in range(3)], deadline_s=30)
    assert [result.outcome for result in results] == [Scored(1.0)] * 3
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "while importing" in printed.err  # the service's log


async def test_g11_a_function_that_raises_is_never_a_zero(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    source = ECHO + "return 1 if solution_str == 'fine' else kwargs['missing']\n"
    scorers = make_scorers(make_function(source))
    items = [make_request(k, "fine" if k % 2 else "broken") for k in range(10)]
    results = await scorers.score(items, deadline_s=30)
    for item, result in zip(items, results, strict=True):
        assert result.sample_id == item.sample_id
        if item.response_text == "fine":
            assert result.outcome == Scored(1.0)
        else:
            assert isinstance(result.outcome, Failed)
            assert result.outcome.reason == "exception"
            assert "compute_score of" in result.outcome.message
            assert "KeyError: 'missing'" in result.outcome.message
            assert "my_reward.py" in result.outcome.message
            assert "line 2" in result.outcome.message
    stats = scorers.stats()
    assert (stats.scored, stats.failed, stats.error_rate) == (5, {"exception": 5}, 0.5)


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "raise RuntimeError('x' * 10_000_000)", "assert False"])
def test_g11_whatever_it_raises_is_an_outcome(make_function: MakeFunction, statement: str) -> None:
    outcome = call(make_function(ECHO + statement + "\n"))
    assert isinstance(outcome, Failed)
    assert outcome.reason == "exception"
    assert len(outcome.message) < 10_000


def test_it_is_called_with_keywords(make_function: MakeFunction) -> None:
    source = (
        "def compute_score(*, extra_info, ground_truth, solution_str, data_source):\n    return extra_info['index']\n"
    )
    assert call(make_function(source)) == Scored(3.0)


def test_a_callable_object_may_be_async(make_function: MakeFunction) -> None:
    source = "class Judge:\n    async def __call__(self, **sample):\n        return 1\ncompute_score = Judge()\n"
    assert call(make_function(source)) == Scored(1.0)


@pytest.mark.parametrize(
    ("source", "name", "kwargs", "said"),
    [
        ("import not_there\n", "compute_score", {}, "No module named 'not_there'"),
        ("def f(:\n", "compute_score", {}, "SyntaxError"),
        ("raise SystemExit\n", "compute_score", {}, "SystemExit"),
        ("x = 1\n", "compute_score", {}, "defines no 'compute_score'"),
        ("x = 1\n", "x", {}, "'x' of"),
        ("def compute_score(text):\n    return 1\n", "compute_score", {}, "must accept the keyword arguments"),
        (
            "def compute_score(data_source, solution_str, ground_truth):\n    return 1\n",
            "compute_score",
            {},
            "extra_info",
        ),
        (ECHO.replace(", **kwargs", "") + "return 1\n", "compute_score", {"alpha": 1}, "alpha"),
        (ECHO + "return 1\n", "compute_score", {"extra_info": 1}, "is given by Argosy"),
    ],
)
def test_one_clear_error_at_the_start(
    make_scorers: MakeScorers,
    make_function: MakeFunction,
    source: str,
    name: str,
    kwargs: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(ConfigError, match=r"^custom_reward_function") as caught:
        make_scorers(make_function(source, name=name, **kwargs), worker_count=2)
    assert said in caught.value.message


@pytest.mark.parametrize("path", ["/not/there.py", "/"])
def test_a_missing_file_is_said(make_scorers: MakeScorers, path: str) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        make_scorers(CustomFunction(path))


async def test_it_may_import_its_neighbours(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest, tmp_path: Any
) -> None:
    (tmp_path / "my_neighbour.py").write_text("SCORE = 0.25\n")
    function = make_function("from my_neighbour import SCORE\n" + ECHO + "return SCORE\n")
    [result] = await make_scorers(function).score([make_request(0, "")], deadline_s=30)
    assert result.outcome == Scored(0.25)


def test_it_scores_without_a_running_loop(
    make_scorers: MakeScorers, make_function: MakeFunction, make_request: MakeRequest
) -> None:
    scorers = make_scorers(make_function(ECHO + "return 1\n"))
    for _ in range(2):  # a new loop each time
        [result] = asyncio.run(scorers.score([make_request(0, "")], deadline_s=30))
        assert result.outcome == Scored(1.0)


def test_the_example_of_the_documentation_works(make_function: MakeFunction) -> None:
    page = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    function = make_function(example, bonus=0.5)
    assert call(function, "it is 4 .", "4") == Scored(1.5, {"acc": True})
