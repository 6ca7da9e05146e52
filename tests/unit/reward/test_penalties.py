"""Length, repetition and language: their ranges, and how they join a verifier's score."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from argosy.reward.core import RewardScorers
from argosy.reward.verifiers import find_verifier
from argosy.reward.verifiers.penalties import language_penalty, length_penalty, repetition_penalty
from argosy.reward.verifiers.scoring import score
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, Scored, ScoreRequest

LOOP = "we try it again and again until it works. " * 60


def outcome(source: str, response: str, gold: object = None, **reward_kwargs: Any) -> Outcome:
    verifier = find_verifier(source)
    assert verifier is not None
    return score(verifier, response, gold, {"reward_kwargs": reward_kwargs})


@pytest.mark.parametrize(
    ("characters", "expected"), [(0, -1.0), (9, -1.0), (10, 0.0), (600, 0.0), (700, -0.25), (1000, -1.0), (9999, -1.0)]
)
def test_length_is_free_then_falls(characters: int, expected: float) -> None:
    result = outcome("argosy/length", "x" * characters, longest=1000, buffer=400, shortest=10)
    assert isinstance(result, Scored)
    assert result.score == pytest.approx(expected)
    assert result.parts["penalty_length"] == pytest.approx(expected)


def test_length_without_a_buffer_is_a_step() -> None:
    assert [length_penalty("x" * n, longest=10, buffer=0, shortest=0) for n in (10, 11)] == [0.0, -1.0]


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        (LOOP, -1.0, -0.9),
        ("x" * 5000, -1.0, -0.9),
        ("再试一次" * 100, -1.0, -0.9),
        ("Each word in this sentence is its own, so that no three of them come again.", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("a b", 0.0, 0.0),
    ],
)
def test_repetition_is_the_share_of_ngrams_seen_before(text: str, least: float, most: float) -> None:
    assert least <= repetition_penalty(text, ngram=3) <= most


def test_repetition_agrees_with_counting() -> None:
    text = "a b c a b d a b c a b c d"
    words = text.split()
    for n in range(1, 6):
        grams = [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]
        assert repetition_penalty(text, n) == pytest.approx(-(1 - len(set(grams)) / len(grams)))


@pytest.mark.parametrize(
    ("text", "scripts", "expected"),
    [
        ("So x² + π = 3, naïve", ["latin", "greek"], 0.0),
        ("ответ", ["latin", "greek"], -1.0),
        ("ab 答案", ["latin"], -0.5),
        ("答案", ["CJK"], 0.0),
        ("12 + 3 = 15", ["latin"], 0.0),
        ("𝑥", ["latin"], 0.0),
    ],
)
def test_language_is_the_share_of_letters_of_other_scripts(text: str, scripts: list[str], expected: float) -> None:
    assert language_penalty(text, scripts) == pytest.approx(expected)


def test_penalties_are_linear_in_the_text() -> None:
    text = "".join(f"word{k} " for k in range(100_000))
    started = time.process_time()
    repetition_penalty(text, 20)
    repetition_penalty("a" * 1_000_000, 200)
    language_penalty(text, ["latin"])
    assert time.process_time() - started < 3


def test_penalties_join_a_score_and_leave_acc_alone() -> None:
    response = LOOP + "#### 5"
    wanted = {"repetition": {"weight": 0.5, "ngram": 4}, "language": {}}
    plain, penalised = outcome("gsm8k", response, "5"), outcome("gsm8k", response, "5", penalties=wanted)
    assert isinstance(plain, Scored)
    assert isinstance(penalised, Scored)
    part = penalised.parts["penalty_repetition"]
    assert isinstance(part, float)
    assert part < -0.9
    assert penalised.score == pytest.approx(1 + 0.5 * part)
    assert penalised.parts == {**plain.parts, "penalty_repetition": part, "penalty_language": 0.0}


def test_penalties_do_not_hide_a_failure() -> None:
    result = outcome("gsm8k", "#### 5", "see figure 3", penalties={"length": {}})
    assert isinstance(result, Failed)
    assert result.reason == "bad_ground_truth"


@pytest.mark.parametrize(
    ("penalties", "said"),
    [
        ({"lenght": {}}, "one of length, repetition, language"),
        ({"length": {"weight": -1}}, "0 … 100, got -1"),
        ({"length": {"longest": 10, "buffer": 20}}, "buffer=20 and longest=10"),
        ({"repetition": {"ngram": 0}}, "at least 1, got 0"),
        ({"repetition": {"n": 3}}, "no option here"),
        ({"language": {"scripts": []}}, "at least one script"),
        (["length"], "must be a mapping"),
    ],
)
def test_wrong_penalties_are_told(penalties: object, said: str) -> None:
    result = outcome("gsm8k", "#### 5", "5", penalties=penalties)
    assert isinstance(result, Failed)
    assert result.reason == "bad_options"
    assert said in result.message


@pytest.mark.parametrize(("tokens", "expected"), [(3, -1.0), (10, 0.0), (75, -0.5), (100, -1.0), (900, -1.0)])
async def test_a_length_in_tokens_asks_for_them_and_counts_them(
    tokens: int, expected: float, make_scorers: Callable[..., RewardScorers]
) -> None:
    kwargs = {"argosy/length": {"unit": "tokens", "longest": 100, "buffer": 50, "shortest": 5}}
    scorers = make_scorers(scorer_kwargs=kwargs)
    assert (await scorers.capabilities()).needs_token_ids
    ids = tuple(range(tokens))
    item = ScoreRequest(SampleId(0, 0, 0), "argosy/length", "", "x" * 5000, "", {}, response_ids=ids)
    [result] = await scorers.score([item], deadline_s=60)
    assert isinstance(result.outcome, Scored)
    assert result.outcome.score == expected


async def test_without_the_option_no_tokens_are_asked_for(make_scorers: Callable[..., RewardScorers]) -> None:
    scorers = make_scorers(scorer_kwargs={"all": {"penalties": {"length": {"longest": 9000}}}})
    assert not (await scorers.capabilities()).needs_token_ids
    wanted = {"all": {"penalties": {"length": {"unit": "tokens"}}}}
    assert (await make_scorers(scorer_kwargs=wanted).capabilities()).needs_token_ids


def test_a_length_in_tokens_without_tokens_is_told() -> None:
    for source, kwargs in (
        ("argosy/length", {"unit": "tokens"}),
        ("argosy/exact_match", {"penalties": {"length": {"unit": "tokens"}}}),
    ):
        failed = outcome(source, "yes", "yes", **kwargs)
        assert isinstance(failed, Failed)
        assert failed.reason == "bad_options"
        assert "scorer_kwargs" in failed.message
    failed = outcome("argosy/length", "yes", unit="words")
    assert isinstance(failed, Failed)
    assert "characters or tokens, got 'words'" in failed.message
