"""`argosy.reward.sandbox.*`: how code in responses is run. Each key by what it does to a real program."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from argosy.config import load
from argosy.config.validate import find_problems
from argosy.reward.build import reward_options
from argosy.reward.verifiers.code import CodeVerifier
from argosy.sandbox.cgroups import Place
from argosy.sandbox.runner import Sandbox
from argosy.types.records import Failed, Outcome, Scored

Judge = Callable[..., Outcome]
ADD = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.fixture
def judge() -> Iterator[Judge]:
    """The verdict on a program with one key set."""
    made: list[CodeVerifier] = []

    def judge(code: str, *overrides: str, expected: str = "3", language: str = "python") -> Outcome:
        options = reward_options(load(["argosy.reward.timeout_s=100", *overrides]))
        verifier = CodeVerifier()
        made.append(verifier)
        verifier.configure(options.sandbox, timeout_s=options.pool.timeout_s)
        tests = {"inputs": ["1 2", "1 3"], "outputs": [expected, expected], "language": language}
        return verifier.verify(f"```{language}\n{code}\n```", tests, {})

    yield judge
    for verifier in made:
        verifier.close()


def score(outcome: Outcome) -> float:
    assert isinstance(outcome, Scored), outcome
    return outcome.score


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Scored), outcome
    return str(outcome.parts["reason"])


def problems(*overrides: str) -> str:
    return "\n".join(find_problems(load(list(overrides))))


def test_isolation(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches the keeper, which refuses or not; and only these two words exist."""
    keeper_arguments: list[str] = []
    original = Sandbox.start

    def start(self: Sandbox) -> None:
        keeper_arguments.append(self.options.isolation)
        original(self)

    monkeypatch.setattr(Sandbox, "start", start)
    assert score(judge(ADD)) == 0.5
    assert score(judge(ADD, "argosy.reward.sandbox.isolation=allowed_without")) == 0.5
    assert set(keeper_arguments) == {"required", "allowed_without"}
    assert "argosy.reward.sandbox.isolation: got 'never'" in problems("argosy.reward.sandbox.isolation=never")


def test_control_groups(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run with what there is, or not at all, or without asking."""
    asked: list[bool] = []

    def nothing() -> tuple[list[Place], list[str]]:
        asked.append(True)
        return [], ["/sys/fs/cgroup: Read-only file system"]

    monkeypatch.setattr("argosy.sandbox.group.find_places", nothing)
    assert score(judge(ADD, "argosy.reward.sandbox.control_groups=off")) == 0.5
    assert not asked
    assert score(judge(ADD)) == 0.5
    assert asked
    outcome = judge(ADD, "argosy.reward.sandbox.control_groups=required")
    assert isinstance(outcome, Failed)
    assert (outcome.reason, "Read-only file system" in outcome.message) == ("sandbox_unavailable", True)
    assert "control_groups: got 'never'" in problems("argosy.reward.sandbox.control_groups=never")


def test_languages(judge: Judge) -> None:
    outcome = judge("read a b; echo $((a + b))", language="bash")
    assert isinstance(outcome, Failed)
    assert outcome.reason == "language_unavailable"
    if shutil.which("bash", path="/usr/bin:/bin"):
        allowed = judge("read a b; echo $((a + b))", "argosy.reward.sandbox.languages=[bash]", language="bash")
        assert score(allowed) == 0.5
    assert "argosy.reward.sandbox.languages: got 'perl'" in problems("argosy.reward.sandbox.languages=[perl]")


def test_credit(judge: Judge) -> None:
    assert score(judge(ADD)) == 0.5
    assert score(judge(ADD, "argosy.reward.sandbox.credit=all")) == 0.0


def test_test_timeout(judge: Judge) -> None:
    slow = "import time\ntime.sleep(0.5)\nprint(3)"
    assert score(judge(slow)) == 1.0
    assert reason(judge(slow, "argosy.reward.sandbox.test_timeout_s=0.2")) == "timeout"


def test_sample_timeout(judge: Judge) -> None:
    slow = "import time\ntime.sleep(1)\nprint(3)"
    outcome = judge(slow, "argosy.reward.sandbox.sample_timeout_s=1.7")
    assert (score(outcome), reason(outcome)) == (0.5, "timeout")
    assert reward_options(load(["argosy.reward.timeout_s=20"])).sandbox.sample_timeout_s == 16
    assert "got 20 with argosy.reward.timeout_s=10, which leaves 9" in problems(
        "argosy.reward.sandbox.sample_timeout_s=20"
    )


def test_memory(judge: Judge) -> None:
    code = "x = bytearray(400 << 20)\nprint(3)"
    assert score(judge(code)) == 1.0
    assert reason(judge(code, "argosy.reward.sandbox.memory_mb=128")) == "memory"


def test_tmp(judge: Judge) -> None:
    code = "open('/tmp/x', 'wb').write(bytes(20 << 20))\nprint(3)"
    assert score(judge(code)) == 1.0
    assert score(judge(code, "argosy.reward.sandbox.tmp_mb=10")) == 0.0


def test_output(judge: Judge) -> None:
    code = "print('x' * (3 << 20))"
    assert reason(judge(code)) == "wrong_answer"
    assert reason(judge(code, "argosy.reward.sandbox.output_mb=1")) == "output_limit"


def test_process_count(judge: Judge) -> None:
    code = "import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n        time.sleep(9)\nprint(3)"
    assert score(judge(code)) == 1.0
    assert reason(judge(code, "argosy.reward.sandbox.process_count=5")) == "runtime_error"


def test_site_packages(judge: Judge) -> None:
    code = "import numpy\nprint(numpy.arange(3).sum())"
    assert score(judge(code)) == 1.0
    assert reason(judge(code, "argosy.reward.sandbox.site_packages=false")) == "runtime_error"
