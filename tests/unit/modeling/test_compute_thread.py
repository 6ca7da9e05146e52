from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from argosy.modeling.compute_thread import ComputeThread
from argosy.types.errors import DeadlineError, OverloadedError, UnavailableError


@pytest.fixture
def thread() -> Iterator[ComputeThread]:
    made = ComputeThread("worker", max_pending=3)
    yield made
    made.close()


async def test_calls_run_one_after_the_other_while_the_loop_stays_free(thread: ComputeThread) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    work = asyncio.gather(*(thread.run(call) for _ in range(3)))
    ticks = 0
    while not work.done():
        await asyncio.sleep(0.005)
        ticks += 1
    assert most == 1
    assert ticks > 5


async def test_a_full_queue_refuses_and_recovers(thread: ComputeThread) -> None:
    gate = threading.Event()
    waiting = [asyncio.ensure_future(thread.run(gate.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="3 calls waiting"):
        await thread.run(time.time)
    gate.set()
    assert await asyncio.gather(*waiting) == [True] * 3
    assert await thread.run(lambda: 5) == 5


async def test_a_deadline_frees_the_caller_but_the_place_only_when_the_work_ends(thread: ComputeThread) -> None:
    gate = threading.Event()
    with pytest.raises(DeadlineError, match=r"did not finish within 0\.02 s"):
        await thread.run(gate.wait, deadline_s=0.02)
    dropped = [asyncio.ensure_future(thread.run(lambda: 1)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await thread.run(lambda: 1)
    gate.set()
    assert await asyncio.gather(*dropped) == [1, 1]


async def test_errors_pass_through_and_a_closed_thread_is_unavailable(thread: ComputeThread) -> None:
    def fail() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await thread.run(fail)
    thread.close()
    with pytest.raises(UnavailableError, match="worker is closed"):
        await thread.run(fail)
