"""The slow lane with real workers (A11, G11): what is put aside gets its right outcome, and nobody waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import pytest

from argosy.reward import lanes, seat
from argosy.reward.core import RewardScorers
from argosy.reward.process import WorkerProcess
from argosy.reward.quota import _LEAST
from argosy.sandbox.options import SandboxOptions
from argosy.types.records import Failed, Outcome, Scored, ScoreRequest

MakeScorers = Callable[..., RewardScorers]
MakeRequest = Callable[..., ScoreRequest]

MATH, CODE = "lighteval/MATH", "argosy/code"
HANGS = r"\boxed{\sin^{-1}(\sqrt{\cos(x^{9}+\ln(y+x)) + \ln(\sin(y^{8}))}) \cdot \tan(x)^{7} + \sqrt{x+\sqrt{y}}}"
"""math-verify works on it for minutes."""
GOLD = r"\sin^{-1}(x)"
NEEDS_MATH_VERIFY = r"\boxed{\arcsin(x)}"
LOOP, SLEEPS = "while True: pass", "import time\ntime.sleep(60)"
SLOW_BUT_RIGHT = """
import time
while time.process_time() < 0.4:
    pass
print(1)
"""


def program(code: str) -> str:
    return f"```python\n{code}\n```"


def hidden_tests() -> str:
    return json.dumps({"inputs": [""], "outputs": ["1\n"]})


def values(outcomes: Iterable[Outcome]) -> list[tuple[float, str]]:
    """Scores, and the rule or the fault that decided."""
    found = []
    for outcome in outcomes:
        assert isinstance(outcome, Scored), outcome
        found.append((outcome.score, str(outcome.parts.get("reason") or outcome.parts["rule"])))
    return found


async def judge(scorers: RewardScorers, items: list[ScoreRequest], deadline_s: float = 600) -> list[Outcome]:
    return [result.outcome for result in await scorers.score(items, deadline_s=deadline_s)]


async def learn(scorers: RewardScorers, make_request: MakeRequest, source: str) -> None:
    """What an ordinary sample costs."""
    if source == MATH:
        ordinary = [make_request(k, rf"\boxed{{{k}}}", str(k), MATH) for k in range(_LEAST)]
    else:
        ordinary = [make_request(k, program("print(1)"), hidden_tests(), CODE) for k in range(_LEAST)]
    assert {score for score, _ in values(await judge(scorers, ordinary))} == {1.0}
    assert scorers.stats().put_aside == 0


def leftovers() -> list[psutil.Process]:
    """Processes of the workers that still run at the lowest priority."""
    idle = []
    for process in psutil.Process().children(recursive=True):
        try:
            if os.sched_getscheduler(process.pid) == os.SCHED_IDLE and process.status() != psutil.STATUS_ZOMBIE:
                idle.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return idle


async def until(condition: Callable[[], Any], seconds: float = 240.0) -> None:
    """A hang guard: what runs at the lowest priority comes to its end only when others leave it a processor."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.02)


async def test_a11_a_hang_is_put_aside_and_nobody_waits_for_it(
    make_scorers: MakeScorers, make_request: MakeRequest
) -> None:
    scorers = make_scorers()
    await learn(scorers, make_request, MATH)
    hung = [make_request(k, HANGS, GOLD, MATH) for k in range(3)]
    hanging = asyncio.create_task(judge(scorers, [*hung, make_request(9, NEEDS_MATH_VERIFY, GOLD, MATH)]))
    ordinary = [make_request(k, rf"\boxed{{{k}}}", str(k - k % 2), MATH) for k in range(100, 150)]
    assert [score for score, _ in values(await judge(scorers, ordinary))] == [1.0, 0.0] * 25
    assert not hanging.done(), "the single worker waited for what came first"
    # As it would be without a slow lane, and in the same processes.
    assert values(await hanging) == [(0.0, "costly")] * 3 + [(1.0, "math-verify")]
    stats = scorers.stats()
    assert (stats.put_aside, stats.unfinished, stats.worker_restarts, stats.failed) == (4, 0, 0, {})
    assert len(scorers.worker_pids) == 2
    await until(lambda: not leftovers())  # on a busy machine the fast worker may have been quicker


async def test_g11_programs_of_the_slow_lane_are_judged_by_their_own_time(
    make_scorers: MakeScorers, make_request: MakeRequest
) -> None:
    scorers = make_scorers(sandbox=SandboxOptions(test_timeout_s=1.0, sample_timeout_s=2.0))
    await learn(scorers, make_request, CODE)
    codes = [LOOP, SLOW_BUT_RIGHT, SLEEPS]
    aside = asyncio.create_task(
        judge(scorers, [make_request(k, program(code), hidden_tests(), CODE) for k, code in enumerate(codes)])
    )
    ordinary = [make_request(k, program(f"print({k % 2})"), hidden_tests(), CODE) for k in range(10, 20)]
    assert [score for score, _ in values(await judge(scorers, ordinary))] == [0.0, 1.0] * 5
    assert not aside.done()
    assert values(await aside) == [(0.0, "timeout"), (1.0, "tests"), (0.0, "timeout")]
    assert scorers.stats().put_aside == 3
    await until(lambda: len(leftovers()) <= 2)  # a cell that waits for the next program: its two processes


async def test_without_time_for_it_nothing_is_put_aside(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    scorers = make_scorers(timeout_s=20)
    await learn(scorers, make_request, MATH)
    assert values(await judge(scorers, [make_request(0, HANGS, GOLD, MATH)], deadline_s=39)) == [(0.0, "costly")]
    assert scorers.stats().put_aside == 0


async def test_a_call_ends_at_its_deadline_wherever_its_samples_are(
    make_scorers: MakeScorers, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes.Lanes, "last_moment", lambda self, job: job.end)  # or they would come back in time
    scorers = make_scorers()
    await learn(scorers, make_request, MATH)
    started = time.monotonic()
    outcomes = await judge(scorers, [make_request(k, HANGS, GOLD, MATH) for k in range(60)], deadline_s=3)
    assert time.monotonic() - started < 20
    late = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    assert late
    assert {outcome.reason for outcome in late} == {"timeout"}
    await until(lambda: scorers.stats().unfinished == 0)
    assert values(await judge(scorers, [make_request(0, r"\boxed{5}", "5", MATH)])) == [(1.0, "number")]


async def test_what_is_put_aside_can_be_cancelled_waiting_or_running(
    make_scorers: MakeScorers, make_request: MakeRequest
) -> None:
    scorers = make_scorers()
    await learn(scorers, make_request, MATH)
    hung = [make_request(k, HANGS, GOLD, MATH) for k in range(20)]
    call = asyncio.create_task(judge(scorers, hung))
    await until(lambda: leftovers() and scorers.stats().put_aside == 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert scorers.stats().unfinished == 0
    await until(lambda: not leftovers())
    [outcome] = await judge(scorers, [make_request(9, NEEDS_MATH_VERIFY, GOLD, MATH)])
    assert values([outcome]) == [(1.0, "math-verify")]


async def test_a_slow_worker_that_dies_is_replaced(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    scorers = make_scorers()
    [fast] = scorers.worker_pids
    await learn(scorers, make_request, MATH)
    call = asyncio.create_task(judge(scorers, [make_request(k, HANGS, GOLD, MATH) for k in range(4)]))
    await until(leftovers)
    [slow] = set(scorers.worker_pids) - {fast}
    os.kill(slow, signal.SIGKILL)
    outcomes = await call
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    assert len(failed) <= 1  # the one that it had, as in the fast lane
    assert all(outcome.reason == "crashed" for outcome in failed)
    assert scorers.stats().unfinished == 0
    await until(lambda: not leftovers())


async def test_no_worker_for_the_slow_lane_fails_no_sample(
    make_scorers: MakeScorers, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorers = make_scorers()
    await learn(scorers, make_request, MATH)

    def refused(*args: object, **kwargs: object) -> WorkerProcess:
        raise OSError("no more processes")

    monkeypatch.setattr(seat, "WorkerProcess", refused)
    outcomes = await judge(scorers, [make_request(k, HANGS, GOLD, MATH) for k in range(2)])
    assert values(outcomes) == [(0.0, "costly")] * 2
    assert scorers.stats().put_aside == 2


async def test_closing_ends_what_was_put_aside(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    scorers = make_scorers()
    await learn(scorers, make_request, MATH)
    call = asyncio.create_task(judge(scorers, [make_request(k, HANGS, GOLD, MATH) for k in range(10)]))
    await until(leftovers)
    await scorers.close()
    assert "aborted" in {outcome.reason for outcome in await call if isinstance(outcome, Failed)}
    assert scorers.worker_pids == ()
    await until(lambda: not leftovers())


async def test_a11_any_mixture_gets_its_right_outcomes(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    """Calls of random samples at the same time, some given up; whatever is judged is judged right."""
    chance, scorers = random.Random(0), make_scorers(worker_count=2)
    await learn(scorers, make_request, MATH)
    kinds = {
        "right": (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", 1.0),
        "wrong": (r"\boxed{7}", "8", 0.0),
        "long": ("9" * 100_000, "8", 0.0),
        "tower": (r"\boxed{10^{10^{10}}}", "8", 0.0),
        "asked": (NEEDS_MATH_VERIFY, GOLD, 1.0),
        "hangs": (HANGS, GOLD, 0.0),
    }
    expected: list[list[float]] = []
    calls: list[asyncio.Task[list[Outcome]]] = []
    for _ in range(12):
        names = chance.choices(list(kinds), weights=[20, 20, 1, 1, 1, 1], k=20)
        items = [make_request(k, *kinds[name][:2], MATH) for k, name in enumerate(names)]
        expected.append([kinds[name][2] for name in names])
        calls.append(asyncio.create_task(judge(scorers, items)))
        await asyncio.sleep(chance.random() * 0.05)
        if chance.random() < 0.3:
            chance.choice(calls).cancel()
    for call, wanted in zip(calls, expected, strict=True):
        try:
            assert [score for score, _ in values(await call)] == wanted
        except asyncio.CancelledError:
            assert call.cancelled()
    stats = scorers.stats()
    assert stats.put_aside > 0
    assert (stats.unfinished, stats.failed) == (0, {})
    await until(lambda: not leftovers())
