"""Who is admitted when, and how a server sees that its engine stands still."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from argosy.rollout.engines.hf.scheduler import Scheduler
from argosy.rollout.engines.hf.slots import SlotCache
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.pulse import WINDOW_S, Pulse, Rate
from argosy.types.errors import InvalidInputError
from unit.rollout.support import Open, answers, loop_of, request


def sample(k: int, *, priority: int = 0, length: int = 5, max_tokens: int = 12) -> Sample:
    asked = replace(request(k, prompt=tuple(range(length)), max_tokens=max_tokens), priority=priority)
    return Sample(asked, stop_ids=frozenset(), stops=None, max_model_len=99, deliver=lambda event: None)


def scheduler(slot_count: int = 2, *, deterministic: bool = False, kv_token_count: int = 0) -> Scheduler:
    return Scheduler(slot_count=slot_count, max_waiting=100, deterministic=deterministic, kv_token_count=kv_token_count)


def admit(queue: Scheduler) -> list[int]:
    return [one.request.sample_id.k for one in queue.admit(1000, lambda one: len(one.prefix))]


def test_more_priority_goes_first_and_equal_ones_in_order() -> None:
    queue = scheduler(slot_count=9)
    queue.add([sample(0), sample(1, priority=-1), sample(2, priority=5)])
    queue.add([sample(3), sample(4, priority=5), sample(5, priority=-1)])
    assert admit(queue) == [2, 4, 0, 3, 1, 5]


def test_a_sample_that_was_put_out_goes_before_its_equals() -> None:
    queue = scheduler(slot_count=2)
    queue.add([sample(k) for k in range(4)])
    assert admit(queue) == [0, 1]
    queue.preempt()
    queue.add([sample(4, priority=1)])
    assert admit(queue) == [4, 0]


def test_priorities_do_not_count_in_deterministic_order() -> None:
    queue = scheduler(slot_count=9, deterministic=True)
    queue.add([sample(2), sample(0), sample(1, priority=9)])
    assert admit(queue) == [0, 1, 2]


def test_memory_is_promised_for_the_whole_answer_and_given_back() -> None:
    queue = scheduler(slot_count=9, kv_token_count=40)
    queue.add([sample(0), sample(1), sample(2), sample(3, length=50, max_tokens=40)])  # 17 each, and 90
    assert admit(queue) == [0, 1]
    assert admit(queue) == []
    queue.release(queue.running[0])
    assert admit(queue) == [2]
    for running in list(queue.running):
        queue.release(running)
    assert admit(queue) == [3]  # alone, whatever it needs
    queue.preempt()
    assert admit(queue) == [3]


def test_long_rows_leave_memory_for_fewer_of_them() -> None:
    """S × T is bounded, and what running rows hold is kept when the rows change."""
    cache = SlotCache(
        layer_count=1, slot_count=8, kv_head_count=1, head_size=2, max_model_len=300, dtype=torch.float32,
        device=torch.device("cpu"), token_count=1024,
    )  # fmt: skip
    assert (cache.row_count, cache.capacity) == (8, 64)
    cache.data[:, :, 1, :60] = 7.0
    shapes = []
    for tokens, rows in ((65, 8), (129, 5), (130, 7), (300, 3), (20, 8)):
        cache.reserve(tokens, rows)
        assert cache.row_count >= rows
        assert cache.capacity >= tokens
        assert cache.row_count * cache.capacity <= 1024
        shapes.append((cache.row_count, cache.capacity))
    assert shapes == [(8, 128), (7, 144), (7, 144), (3, 300), (8, 32)]
    assert bool((cache.data[:, :, 1, :32] == 7.0).all())


async def test_answers_are_the_same_however_little_memory_there_is(open_rollout: Open) -> None:
    asked = [request(k, position, max_tokens=20 + 40 * k) for k in range(4) for position in range(3)]
    wide = await answers(await open_rollout(), asked)
    tight_rollout = await open_rollout(kv_token_count=300)
    tight = await answers(tight_rollout, asked)
    assert [one.token_ids for one in tight] == [one.token_ids for one in wide]
    data = loop_of(tight_rollout).runner.slots.data
    assert data.shape[2] * data.shape[3] <= 300 + 15 * data.shape[2]


async def test_more_memory_than_there_is_and_less_than_one_sample_needs_are_refused(open_rollout: Open) -> None:
    with pytest.raises(InvalidInputError, match=r"kv_tokens=1000000000000 needs .* GiB"):
        await open_rollout(kv_token_count=10**12)
    with pytest.raises(InvalidInputError, match=r"100 tokens, less than one sample of 256 may need"):
        await open_rollout(kv_token_count=100)


async def test_by_default_every_slot_has_memory_within_what_is_free(
    open_rollout: Open, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = await open_rollout(slot_count=3, max_model_len=200)
    assert (await rollout.status()).kv_total_tokens == 600
    from argosy.rollout.engines.hf import room

    each = room.token_bytes(rollout.engine.model)  # type: ignore[attr-defined]
    monkeypatch.setattr(room, "free_bytes", lambda device: 2 * 450 * each)
    assert (await (await open_rollout(slot_count=3, max_model_len=200)).status()).kv_total_tokens == 450


def test_a_rate_is_over_the_last_seconds() -> None:
    rate = Rate()
    assert rate.note(100, now=0.0) == 0
    assert rate.note(110, now=1.0) == 10
    for second in range(2, 40):
        rate.note(110, now=float(second))
    assert rate.note(110, now=40.0) == 0
    assert rate.note(210, now=41.0) == pytest.approx(100 / WINDOW_S, rel=0.2)


def test_a_rate_that_is_asked_for_all_the_time_is_bounded_and_right() -> None:
    rate = Rate()
    found = [rate.note(step, now=step / 1000) for step in range(30_000)]
    assert len(rate._points) <= 256
    assert found[-1] == pytest.approx(1000, rel=0.01)


async def test_f10_an_engine_that_stands_still_is_stuck_until_it_moves(open_rollout: Open) -> None:
    rollout = await open_rollout(stall_timeout_s=0.1)
    assert (await rollout.status()).state == "ready"
    may_go = threading.Event()
    loop_of(rollout).call(may_go.wait)
    await rollout.status()
    await asyncio.sleep(0.2)
    assert (await rollout.status()).state == "stuck"
    may_go.set()
    async with asyncio.timeout(10):
        while (await rollout.status()).state != "ready":  # noqa: ASYNC110 - the engine's thread tells nobody
            await asyncio.sleep(0.01)


async def test_f10_an_engine_that_turns_but_samples_nothing_is_stuck(
    open_rollout: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop answers, and no token comes."""
    rollout = await open_rollout(stall_timeout_s=0.1)
    loop = loop_of(rollout)
    monkeypatch.setattr(loop, "step", lambda: threading.Event().wait(0.001))
    task = asyncio.create_task(answers(rollout, [request(0, max_tokens=200)]))
    async with asyncio.timeout(10):
        while not (await rollout.status()).waiting_count:  # noqa: ASYNC110 - the engine's thread tells nobody
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert (await rollout.status()).state == "stuck"
    monkeypatch.undo()
    assert len((await task)[0].token_ids) == 200


async def test_f10_waiting_in_a_pause_or_without_work_is_not_being_stuck(open_rollout: Open) -> None:
    now = [0.0]
    rollout = await open_rollout()
    pulse = Pulse(rollout.engine, 10.0, clock=lambda: now[0])

    async def look(at: float, *, idle: bool) -> float:
        now[0] = at
        found = pulse.stuck_s(idle=idle)
        async with asyncio.timeout(10):
            while pulse._ping is not None and not pulse._ping.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return found

    assert [await look(at, idle=True) for at in (0.0, 100.0, 200.0)] == [0, 0, 0]
    assert await look(205.0, idle=False) == 0
    assert await look(211.0, idle=False) == 11.0  # since there is something to do, and no token comes
