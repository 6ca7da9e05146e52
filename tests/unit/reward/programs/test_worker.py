"""Code through the reward service's own workers: known by name, ended with them, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.pool import PoolOptions
from argosy.sandbox.cgroups import find_places
from argosy.sandbox.options import SandboxOptions
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Scored, ScoreRequest

SOURCES = ("codecontests", "apps", "codeforces", "taco", "livecodebench", "argosy/code")
ADD = "a, b = map(int, input().split())\nprint(a + b)"
STAYS = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(300)"


def sample(k: int, code: str, source: str = "apps") -> ScoreRequest:
    tests = {"inputs": [f"{k} 1"], "outputs": [str(k + 1)]}
    return ScoreRequest(SampleId(0, 0, k), source, "", f"```python\n{code}\n```", tests, {})


@pytest.fixture
def scorers() -> Iterator[RewardScorers]:
    sandbox = SandboxOptions(test_timeout_s=5.0, sample_timeout_s=5.0)
    made = RewardScorers(RewardOptions(PoolOptions(worker_count=1, timeout_s=60), sandbox=sandbox))
    yield made
    made.shutdown()


def descendants(scorers: RewardScorers) -> list[psutil.Process]:
    """The keeper and its cells."""
    return [child for pid in scorers.worker_pids for child in psutil.Process(pid).children(recursive=True)]


def wait_started(scorers: RewardScorers) -> None:
    """Until there are a keeper, a cell's two processes, and the program."""
    end = time.monotonic() + 30
    while len(descendants(scorers)) < 4:
        assert time.monotonic() < end, "the program wasn't started"
        time.sleep(0.02)


def wait_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    left = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert not left


async def test_all_sources_are_scored(scorers: RewardScorers) -> None:
    assert set(SOURCES) <= set((await scorers.capabilities()).data_sources)
    results = await scorers.score([sample(k, ADD, name) for k, name in enumerate(SOURCES)], deadline_s=60)
    assert [result.outcome.score for result in results if isinstance(result.outcome, Scored)] == [1.0] * len(SOURCES)


async def test_the_sandbox_ends_with_the_service(scorers: RewardScorers) -> None:
    await scorers.score([sample(1, ADD)], deadline_s=60)
    started = descendants(scorers)
    assert started
    await scorers.close()
    wait_gone(started)


async def test_a_worker_that_is_killed_leaves_nothing_and_the_next_one_scores(scorers: RewardScorers) -> None:
    running = asyncio.create_task(scorers.score([sample(1, STAYS)], deadline_s=60))
    await asyncio.to_thread(wait_started, scorers)
    started = descendants(scorers)
    os.kill(scorers.worker_pids[0], signal.SIGKILL)
    outcome = (await running)[0].outcome
    assert isinstance(outcome, Failed), "what happened to the worker isn't the program's fault"
    wait_gone(started)
    result = (await scorers.score([sample(2, ADD)], deadline_s=60))[0].outcome
    assert isinstance(result, Scored)
    assert result.score == 1.0


async def test_ended_workers_leave_no_control_groups() -> None:
    """They are killed, so whoever ends them sweeps."""
    before = set(groups())
    scorers = RewardScorers(RewardOptions(PoolOptions(worker_count=1, timeout_s=60)))
    (result,) = await scorers.score([sample(0, ADD)], deadline_s=60)
    assert isinstance(result.outcome, Scored)
    own = set(groups()) - before
    assert own or not find_places()[0]
    scorers.shutdown()
    assert not own & set(groups())


def groups() -> list[Path]:
    return [path for place in find_places()[0] for path in Path(place.folder).glob("argosy-sandbox-*")]
