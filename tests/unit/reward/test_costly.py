"""Who is at fault when judging costs too much: the answer's own expression is wrong, our own work fails (A11, G11)."""

from __future__ import annotations

import io
import math
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from argosy.reward.verifiers import VERIFIERS, algebra, find_verifier
from argosy.reward.verifiers.base import Verifier
from argosy.reward.verifiers.budget import BUDGET
from argosy.reward.verifiers.scoring import score
from argosy.reward.worker import _BuiltIn
from argosy.types.records import Failed, Outcome, Scored

HANGS = r"\sin^{-1}(\sqrt{\cos(x^{9}+\ln(y+x)) + \ln(\sin(y^{8}))}) \cdot \tan(x)^{7} + \sqrt{x+\sqrt{y}}"
"""math-verify works on it for minutes."""
GOLD = r"\sin^{-1}(x)"


def spin(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """0.2 s of processor time."""
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    return Scored(1.0)


def out_of_memory(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    raise MemoryError("no room")


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker's handler and isolation, in this process for a while."""
    monkeypatch.setattr(algebra, "_isolation", [])
    before = signal.getsignal(signal.SIGVTALRM)
    yield
    signal.signal(signal.SIGVTALRM, before)


def judged(verifier: Verifier, monkeypatch: pytest.MonkeyPatch, text: str = "Answer: 8") -> Outcome:
    monkeypatch.setitem(VERIFIERS, "test/source", verifier)
    sample = {"data_source": "test/source", "response_text": text, "ground_truth": "7", "extra_info": {}}
    return _BuiltIn(0.05, io.BytesIO()).score({"samples": [sample], "quota_s": None, "allowed_s": 60.0})[0]


@pytest.mark.usefixtures("_restored")
def test_a_sample_bounds_itself_and_nothing_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
        seen.append(BUDGET.end - time.monotonic())
        return Scored(1.0)

    judged(Verifier("test", verify), monkeypatch)
    assert 0 < seen[0] <= 60
    assert BUDGET.end == BUDGET.left_s + BUDGET.spent_s == math.inf


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("verify", [spin, out_of_memory])
def test_g11_what_our_own_work_costs_is_never_a_score(verify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Verifier("test", verify), monkeypatch)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "costly"
    assert ("0.05 s" if verify is spin else "no room") in outcome.message


@pytest.mark.usefixtures("_restored")
def test_g11_a_long_text_is_no_best_score_of_a_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(VERIFIERS["argosy/repetition"], monkeypatch, "the cat sat on the mat " * 100_000)
    assert isinstance(outcome, Failed)
    assert outcome.reason == "costly"


@pytest.mark.usefixtures("_restored")
def test_a_verifier_with_limits_of_its_own_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(Verifier("test", spin, bounds_itself=True), monkeypatch) == Scored(1.0)
    for source in ("codecontests", "apps", "argosy/code"):
        assert VERIFIERS[source].bounds_itself


@pytest.mark.parametrize(
    ("source", "response", "kwargs", "expected"),
    [
        ("lighteval/MATH", rf"\boxed{{{HANGS}}}", {}, 0.0),
        ("math_dapo", f"Answer: ${HANGS}$", {}, -1.0),
        ("hiyouga/geometry3k", rf"<think>so</think> It is \boxed{{{HANGS}}}", {}, 0.1),
        ("math_dapo", f"Answer: ${HANGS}$", {"penalties": {"length": {"longest": 10, "buffer": 0}}}, -2.0),
    ],
)
def test_a11_a_costly_answer_is_wrong_on_its_verifiers_own_scale(
    source: str, response: str, kwargs: dict[str, Any], expected: float
) -> None:
    verifier = find_verifier(source)
    assert verifier is not None
    algebra.prepare()
    with algebra.isolated():
        outcome = score(verifier, response, GOLD, {"reward_kwargs": kwargs})
    assert isinstance(outcome, Scored)
    assert outcome.parts["rule"] == "costly"
    assert outcome.parts["acc"] == 0
    assert outcome.score == pytest.approx(expected)
