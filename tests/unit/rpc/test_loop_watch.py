"""Case F10: an event loop that stands still is found out, one that is only busy is not."""

from __future__ import annotations

import asyncio
import time

from argosy.rpc.loop_watch import LoopWatch


async def test_f10_a_loop_that_stands_still_is_told_once() -> None:
    told: list[float] = []
    watch = LoopWatch(0.2, told.append)
    await asyncio.sleep(0.1)
    assert told == []
    time.sleep(0.6)  # noqa: ASYNC251 - this is what it looks for
    assert told == [0.2]
    watch.stop()


async def test_f10_a_loop_that_is_busy_and_turns_is_left_alone() -> None:
    told: list[float] = []
    watch = LoopWatch(1.0, told.append)
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        time.sleep(0.05)  # noqa: ASYNC251 - a turn of much work
        await asyncio.sleep(0)
    assert told == []
    watch.stop()


async def test_f10_a_watch_that_was_stopped_looks_no_more() -> None:
    told: list[float] = []
    LoopWatch(0.1, told.append).stop()
    time.sleep(0.3)  # noqa: ASYNC251
    assert told == []
