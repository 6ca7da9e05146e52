"""From whom servers take weights: the trainer sends a version a few times, and nobody waits for a frozen one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from argosy.controller.stages.sources import TRAINER, Holder, Sources
from argosy.controller.stages.turns import Turns
from argosy.roles.weights import SOURCE
from argosy.types.errors import UnavailableError

NOWHERE: Any = None
"""A source that nobody reads."""


async def take(
    sources: Sources, name: str, log: list[tuple[str, str]], seconds: float = 0.0, *, error: Exception | None = None
) -> None:
    async with sources.lent() as holder:
        log.append((holder.member, name))
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
    sources.add(Holder(name, NOWHERE, holder.hops + 1))


async def test_each_holder_passes_on_to_one_at_a_time_and_the_trainer_to_two() -> None:
    sources, log, running = Sources(NOWHERE, 2), list[tuple[str, str]](), list[str]()

    async def one(name: str) -> None:
        async with sources.lent() as holder:
            assert holder.member == TRAINER or holder.member not in running
            running.append(holder.member)
            log.append((holder.member, name))
            await asyncio.sleep(0.01)
            running.remove(holder.member)
        sources.add(Holder(name, NOWHERE, holder.hops + 1))

    await asyncio.gather(*(one(f"{number:03}") for number in range(100)))
    assert [name for member, name in log if member == TRAINER] == ["000", "001"]
    assert len(log) == 100


async def test_without_relays_the_trainer_serves_all() -> None:
    log: list[tuple[str, str]] = []
    sources = Sources(NOWHERE, None)
    await asyncio.gather(*(take(sources, name, log) for name in "abcde"))
    assert {member for member, _ in log} == {TRAINER}


@pytest.mark.parametrize("blames", [True, False])
async def test_a_source_is_dropped_if_it_is_blamed_and_only_then(blames: bool) -> None:
    sources, log = Sources(NOWHERE, 1), list[tuple[str, str]]()
    await take(sources, "a", log)
    error = UnavailableError("lost", **({SOURCE: "a:1"} if blames else {}))
    with pytest.raises(UnavailableError):
        await take(sources, "b", log, error=error)
    assert log[-1] == ("a", "b")
    await take(sources, "b", log)
    assert log[-1] == (TRAINER if blames else "a", "b"), "somebody has to"


async def test_a_failed_try_gives_the_trainers_turn_back() -> None:
    sources, log = Sources(NOWHERE, 1), list[tuple[str, str]]()
    with pytest.raises(UnavailableError):
        await take(sources, "dead", log, error=UnavailableError("lost"))
    assert log.pop() == (TRAINER, "dead")
    await asyncio.gather(*(take(sources, name, log, 0.01) for name in "abc"))
    assert [member for member, _ in log].count(TRAINER) == 1


async def test_who_waits_behind_frozen_servers_is_served_by_the_trainer_one_after_another() -> None:
    sources, log = Sources(NOWHERE, 2, patience_s=0.2), list[tuple[str, str]]()
    frozen = [asyncio.create_task(take(sources, f"frozen-{number}", log, 600)) for number in range(2)]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await asyncio.gather(*(take(sources, f"{number}", log) for number in range(6)))
    assert [member for member, _ in log].count(TRAINER) == 3, "two for the frozen ones, and one more that passed it on"
    for task in frozen:
        task.cancel()


async def test_a_last_try_is_the_trainers() -> None:
    sources = Sources(NOWHERE, 0)
    sources.add(Holder("a", NOWHERE))
    async with sources.lent(last=True) as holder:
        assert holder.member == TRAINER


async def test_a_sync_of_all_ends_those_of_one_and_they_wait_for_it() -> None:
    turns, begun, forever, order = Turns(), asyncio.Event(), asyncio.Event(), list[str]()

    async def work(name: str) -> None:
        order.append(name)
        begun.set()
        if name == "first":
            await forever.wait()

    first = asyncio.create_task(turns.single("a", lambda: work("first")))
    await begun.wait()
    async with turns.whole():
        assert await first is False
        second = asyncio.create_task(turns.single("a", lambda: work("second")))
        await asyncio.sleep(0.01)
        order.append("all")
    assert await second is True
    assert order == ["first", "all", "second"]


async def test_one_at_a_time_for_each_server_and_errors_reach_the_caller() -> None:
    turns, running = Turns(), list[str]()

    async def work(name: str) -> None:
        assert name not in running
        running.append(name)
        await asyncio.sleep(0.01)
        running.remove(name)
        if name == "b":
            raise UnavailableError("lost")

    done = await asyncio.gather(
        *(turns.single(name, lambda name=name: work(name)) for name in "aab"),  # type: ignore[misc]
        return_exceptions=True,
    )
    assert done[:2] == [True, True]
    assert isinstance(done[2], UnavailableError)


async def test_a_caller_that_is_cancelled_takes_its_work_along() -> None:
    turns, ended = Turns(), list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    caller = asyncio.create_task(turns.single("a", work))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == ["work"]
    assert await turns.single("a", lambda: asyncio.sleep(0)) is True
