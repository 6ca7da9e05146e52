"""`@reward`: arguments by name, plain and async, per sample and in batches; what is refused (cases G1, G2, G11)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.reward.core import RewardScorers
from argosy.reward.custom import CustomFunction, LoadedFunction
from argosy.reward.returns import outcomes_of
from argosy.reward.sdk import PARAMETERS, reward
from argosy.types.errors import ConfigError
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, RewardCapabilities, Scored, ScoreRequest

MakeScorers = Callable[..., RewardScorers]
MakeFunction = Callable[..., CustomFunction]

HEAD = "from argosy.reward.sdk import reward\n"


def sample(k: int = 0, response: str = "four", **fields: Any) -> ScoreRequest:
    given: dict[str, Any] = {
        "ground_truth": "four",
        "extra_info": {"index": k},
        "prompt_ids": (1, 2),
        "response_ids": (3, 4, 5),
        "messages": ({"role": "user", "content": "2+2?"},),
    } | fields
    return ScoreRequest(SampleId(0, 0, k), "toy", "2+2?", response, **given)


async def judged(scorers: RewardScorers, *items: ScoreRequest) -> list[Outcome]:
    return [result.outcome for result in await scorers.score(items, deadline_s=30)]


def test_a_marked_function_is_still_a_function() -> None:
    @reward
    def right(solution: str, ground_truth: str) -> bool:
        return solution == ground_truth

    assert right("4", "4")


async def test_it_is_given_what_it_names(make_scorers: MakeScorers, make_function: MakeFunction) -> None:
    names = ", ".join(PARAMETERS)
    source = (
        f"{HEAD}import json\n@reward\ndef compute_score({names}):\n"
        f"    return {{'score': 0, 'seen': json.dumps([{names}])}}\n"
    )
    scorers = make_scorers(make_function(source))
    capabilities = await scorers.capabilities()
    assert (capabilities.needs_token_ids, capabilities.needs_messages) == (True, True)
    [outcome] = await judged(scorers, sample(valid_response=False))
    assert isinstance(outcome, Scored)
    assert outcome.score == 0
    assert outcome.parts["seen"] == (
        '["four", "four", "four", "four", "four", {"index": 0}, "toy", "2+2?", '
        '[{"role": "user", "content": "2+2?"}], [1, 2], [3, 4, 5], true]'
    )


async def test_what_it_doesnt_name_isnt_asked_for(make_scorers: MakeScorers, make_function: MakeFunction) -> None:
    source = f"{HEAD}@reward\ndef compute_score(solution, *, bonus=0.5, **rest):\n    return bonus + len(rest)\n"
    scorers = make_scorers(make_function(source))
    assert await scorers.capabilities() == RewardCapabilities(("*",), name="compute_score")
    assert await judged(scorers, sample()) == [Scored(0.5)]
    assert await judged(make_scorers(make_function(source, bonus=2, other=1)), sample()) == [Scored(3.0)]


async def test_it_says_what_it_judges(make_scorers: MakeScorers, make_function: MakeFunction) -> None:
    source = (
        f"{HEAD}@reward(data_sources=('toy', 'math/*'), max_batch_size=7, repeat_forbidden=True, name='judge', "
        "version='3')\ndef compute_score(data_source):\n    return 1\n"
    )
    scorers = make_scorers(make_function(source))
    assert await scorers.capabilities() == RewardCapabilities(
        ("toy", "math/*"), max_batch_size=7, repeat_forbidden=True, name="judge", version="3"
    )
    other = ScoreRequest(SampleId(0, 1, 0), "toys", "", "", None)
    maths = ScoreRequest(SampleId(0, 2, 0), "math/sums", "", "", None)
    found = await judged(scorers, sample(), other, maths)
    assert [type(outcome) for outcome in found] == [Scored, Failed, Scored]


@pytest.mark.parametrize("asynchronous", ["", "async "])
async def test_a_batch_is_one_call(make_scorers: MakeScorers, make_function: MakeFunction, asynchronous: str) -> None:
    source = (
        f"{HEAD}@reward(batch=True)\n{asynchronous}def compute_score(solution, extra_info):\n"
        "    return [None if text == 'none' else {'score': info['index'], 'together': len(solution)}\n"
        "            for text, info in zip(solution, extra_info, strict=True)]\n"
    )
    items = [sample(k, "none" if k == 1 else "text") for k in range(4)]
    found = await judged(make_scorers(make_function(source)), *items)
    assert found[0] == Scored(0.0, {"together": 4.0})
    assert isinstance(found[1], Abstained)
    assert found[3] == Scored(3.0, {"together": 4.0})


async def test_token_scores_are_one_for_each_response_id(
    make_scorers: MakeScorers, make_function: MakeFunction
) -> None:
    source = (
        f"{HEAD}@reward\ndef compute_score(solution, response_ids):\n"
        "    return {'score': 1, 'token_scores': eval(solution)}\n"
    )
    scorers = make_scorers(make_function(source))
    texts = ["[0, 0.5, 1]", "[0, 1]", "[0, 1, float('nan')]", "'abc'", "None", "[0, 1, '1']"]
    found = await judged(scorers, *(sample(k, text) for k, text in enumerate(texts)))
    assert found[0] == Scored(1.0, {}, (0.0, 0.5, 1.0))
    assert found[4] == Scored(1.0, {"token_scores": "null"})
    for index, said in ((1, "of 2 entries for 3 response ids"), (2, "no finite"), (3, "as a str"), (5, "no finite")):
        outcome = found[index]
        assert isinstance(outcome, Failed)
        assert outcome.reason == "bad_return"
        assert said in outcome.message


@pytest.mark.parametrize("value", [math.nan, math.inf, {"score": math.nan}, np.float32("inf")])
def test_g1_one_entry_of_a_batch_that_is_not_finite_fails_alone(value: Any) -> None:
    found = outcomes_of([1, value, None, 0], "f of f.py", 4)
    assert [type(outcome) for outcome in found] == [Scored, Failed, Abstained, Scored]
    assert isinstance(found[1], Failed)
    assert "f of f.py returned" in found[1].message


async def late() -> list[float]:
    return [1.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: [1.0], "1 entries for 4 samples"),
        (lambda: [1.0] * 3, "3 entries for 4 samples"),
        (lambda: [1.0] * 5, "5 entries for 4 samples"),
        (list, "0 entries for 4 samples"),
        (lambda: 1.0, "a float"),
        (lambda: None, "a NoneType"),
        (lambda: {"score": [1.0] * 4}, "a dict of 1"),
        (lambda: "1111", "the str '1111'"),
        (late, "a coroutine that was never awaited"),
        (lambda: (x for x in (1, 1, 1, 1)), "a generator"),
        (lambda: np.ones((4, 1)), "a ndarray of shape (4, 1)"),
        (lambda: np.array(1.0), "a ndarray of shape ()"),
        (lambda: {1, 2, 3, 4}, "a set of 4"),
    ],
)
def test_g2_a_batch_of_the_wrong_number_or_type_is_refused_whole(make: Callable[[], Any], said: str) -> None:
    found = outcomes_of(make(), "f of f.py", 4)
    assert len(found) == 4
    for outcome in found:
        assert isinstance(outcome, Failed)
        assert outcome.reason == "bad_return"
        assert outcome.message.startswith("f of f.py returned")
        assert said in outcome.message


def test_g2_entries_of_a_batch_are_refused_one_by_one() -> None:
    entries = [np.float32(0.5), True, "1", [1.0], {"score": 1, "a": [1]}, {"acc": 1}, (0.5, {}), np.array(2)]
    kinds = [type(outcome) for outcome in outcomes_of(entries, "f", len(entries))]
    assert kinds == [Scored, Scored, Failed, Failed, Scored, Failed, Failed, Scored]
    assert outcomes_of(np.array([1, 0]), "f", 2) == [Scored(1.0), Scored(0.0)]


async def test_g11_a_batch_function_that_raises_or_hangs_fails_its_batch(
    make_scorers: MakeScorers, make_function: MakeFunction
) -> None:
    source = (
        f"{HEAD}import os, time\n@reward(batch=True)\ndef compute_score(solution):\n"
        "    if 'hang' in solution: time.sleep(60)\n    if 'die' in solution: os._exit(3)\n"
        "    return [1 / len(text) for text in solution]\n"
    )
    scorers = make_scorers(make_function(source), timeout_s=2)
    for text, reason in (("", "exception"), ("hang", "timeout"), ("die", "crashed")):
        found = await judged(scorers, sample(0, "fine"), sample(1, text))
        assert [outcome.reason for outcome in found if isinstance(outcome, Failed)] == [reason, reason]
    assert await judged(scorers, sample(0, "fine"), sample(1, "ok")) == [Scored(0.25), Scored(0.5)]


def test_a_parameter_that_no_sample_has_is_refused(make_function: MakeFunction) -> None:
    function = make_function(f"{HEAD}@reward\ndef compute_score(solution, truth):\n    return 1\n")
    with pytest.raises(ConfigError, match=r"has the parameter 'truth', which no sample has\. There are solution, "):
        LoadedFunction(function)


def test_batch_parameters_may_be_plural(make_function: MakeFunction) -> None:
    source = f"{HEAD}@reward(batch=True)\ndef compute_score(solutions, ground_truths):\n    return [len(solutions)]\n"
    given = {"response_text": "a", "ground_truth": "b"}
    assert LoadedFunction(make_function(source)).score_batch([given]) == [Scored(1.0)]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("@reward\ndef compute_score(*solutions):\n    return 1\n", "can't be given by name"),
        ("@reward\ndef compute_score(solution, /):\n    return 1\n", "can't be given by name"),
        ("@reward\ndef compute_score(solution):\n    yield 1\n", "a generator gives no score"),
        ("@reward(max_batch_size=0)\ndef compute_score(solution):\n    return 1\n", "max_batch_size must be positive"),
        ("@reward(data_sources='toy')\ndef compute_score(solution):\n    return 1\n", "a tuple of names"),
        ("@reward(batches=True)\ndef compute_score(solution):\n    return 1\n", "batches"),
    ],
)
def test_a_mark_that_cant_work_is_one_error_at_the_start(make_function: MakeFunction, source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LoadedFunction(make_function(HEAD + source))


VERL_FILES: Mapping[str, str] = {
    "plain": "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    "    return float(solution_str == ground_truth)\n",
    "kwargs": "def compute_score(solution_str, ground_truth, method='strict', **kwargs):\n"
    "    assert set(kwargs) == {'data_source', 'extra_info'}\n"
    "    return {'score': float(solution_str == ground_truth), 'acc': solution_str == ground_truth}\n",
    "async": "async def compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs):\n"
    "    return {'score': float(solution_str == ground_truth)}\n",
    "batch": "def compute_score(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):\n"
    "    assert all(info['index'] >= 0 for info in extra_infos) and data_sources[0] == 'toy'\n"
    "    return [float(a == b) for a, b in zip(solution_strs, ground_truths, strict=True)]\n",
    "async batch": "async def compute_score(data_sources, solution_strs, ground_truths, extra_infos):\n"
    "    return [{'score': float(a == b)} for a, b in zip(solution_strs, ground_truths, strict=True)]\n",
}


@pytest.mark.parametrize("style", VERL_FILES)
async def test_files_written_for_verl_work_unchanged(
    make_scorers: MakeScorers, make_function: MakeFunction, style: str
) -> None:
    found = await judged(make_scorers(make_function(VERL_FILES[style])), sample(0), sample(1, "five"))
    assert [outcome.score for outcome in found if isinstance(outcome, Scored)] == [1.0, 0.0]


def test_verls_batch_manager_gives_lists_to_a_function_that_doesnt_tell(make_function: MakeFunction) -> None:
    source = "def compute_score(**kwargs):\n    return [len(kwargs['solution_strs'])]\n"
    given = {"data_source": "toy", "response_text": "a", "ground_truth": "b", "extra_info": {}}
    function = make_function(source)
    assert LoadedFunction(replace(function, batch=True)).score_batch([given]) == [Scored(1.0)]
    assert isinstance(LoadedFunction(function).score_batch([given])[0], Failed)


def test_the_example_is_what_its_page_says() -> None:
    path = Path(__file__).resolve().parents[3] / "examples" / "rewards" / "python" / "reward.py"
    numbers = LoadedFunction(CustomFunction(str(path), "last_number"))
    assert numbers.score({"response_text": "7, no: 1,008", "ground_truth": "1008"}) == Scored(
        1.0, {"acc": True, "pred": "1008"}
    )
    assert isinstance(numbers.score({"response_text": "7", "ground_truth": None}), Failed)
    brevity = LoadedFunction(CustomFunction(str(path), "brevity"))
    found = brevity.score_batch([{"response_text": "", "truncated": cut} for cut in (False, True)])
    assert found[0] == Scored(1.0)
    assert isinstance(found[1], Abstained)
