"""Who gets a server: room, order, and what is held."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.controller.stages.dispatch import SPARE_OFFERS, Places
from argosy.types.ids import SampleId
from argosy.types.records import Generated, GenerateRequest, SamplingParams


def request(position: int, k: int = 0, priority: int = 0, tokens: int = 0) -> GenerateRequest:
    have = Generated((1,) * tokens, (-0.1,) * tokens, ())
    return GenerateRequest(SampleId(0, position, k), (1,), SamplingParams(4), generated=have, priority=priority)


def places_of(slots: dict[str, int], usable: set[str] | None = None) -> Places:
    known = set(slots) if usable is None else usable
    places = Places(lambda: sorted(known), lambda member: slots[member], lambda member: member in known)
    places.fill()
    return places


async def test_those_with_tokens_go_first_and_then_the_first_to_come() -> None:
    places = places_of({"a": 1})  # one runs, one more waits at the server
    order: list[int] = []

    async def one(wanted: GenerateRequest) -> None:
        member = await places.take(wanted)
        order.append(wanted.sample_id.position)
        await asyncio.sleep(0)
        places.leave(member, wanted)

    wanted = [request(0), request(1), request(2), request(3), request(4, tokens=3), request(5, priority=1)]
    await asyncio.gather(*map(one, wanted))
    assert order == [0, 1, 5, 4, 2, 3]


async def test_a_held_server_gets_nothing_and_becomes_empty() -> None:
    places = places_of({"a": 4, "b": 4})
    first = await places.take(request(0))
    places.hold(first, "swap")
    others = [await places.take(request(position)) for position in range(1, 5)]
    assert set(others) == {"a", "b"} - {first}
    emptied = asyncio.create_task(places.empty(first))
    await asyncio.sleep(0)
    assert not emptied.done()
    places.leave(first, request(0))
    await asyncio.wait_for(emptied, 5)
    places.hold(first, "parity")
    places.hold(first, "swap")  # again, as a swap does that aborts after it has waited
    places.release(first, "swap")
    assert places.is_held(first), "until all have let go who hold it"
    places.release(first, "parity")
    assert await places.take(request(9)) == first


async def test_a_caller_that_goes_leaves_no_trace() -> None:
    places = places_of({"a": 1})
    held = [await places.take(request(0)), await places.take(request(1))]
    waiting = asyncio.create_task(places.take(request(2)))
    await asyncio.sleep(0)
    places.leave(held.pop(), request(1))  # the place comes in the same moment in which its caller goes
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    places.leave(held.pop(), request(0))
    assert places.outstanding("a") == 0
    assert places.waiting_count == 0


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 6), min_size=1), st.integers(0, 2**32))
def test_no_room_is_left_while_somebody_waits(slots: dict[str, int], seed: int) -> None:
    """Whatever comes, ends, and is held, in any order: nobody has more than its limit, or waits beside free room."""

    async def run() -> None:
        random = Random(seed)
        places = places_of(slots)
        tasks: dict[asyncio.Task[str], GenerateRequest] = {}
        limits = {member: count + 1 + count // 8 for member, count in slots.items()}
        held: set[str] = set()
        for number in range(120):
            member = random.choice(sorted(slots))
            match random.randrange(4):
                case 0 | 1:
                    wanted = request(number // 3, number % 3)
                    tasks[asyncio.create_task(places.take(wanted))] = wanted
                case 2:
                    placed = [task for task in tasks if task.done()]
                    if placed:
                        gone = random.choice(placed)
                        places.leave(gone.result(), tasks.pop(gone))
                case 3 if member in held:
                    held.discard(member)
                    places.release(member, "swap")
                case 3:
                    held.add(member)
                    places.hold(member, "swap")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            counts = {name: sum(t.done() and t.result() == name for t in tasks) for name in slots}
            assert counts == {name: places.outstanding(name) for name in slots}
            assert all(counts[name] <= limits[name] for name in slots)
            free = [name for name in slots if name not in held and counts[name] < limits[name]]
            assert not (free and places.waiting_count)
            assert len(places._room) <= (SPARE_OFFERS + 1) * (len(slots) + 1), "what is remembered is bounded"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def test_the_server_with_the_fewest_tokens_for_its_slots_and_speed_is_next() -> None:
    slots, speeds = {"a": 8, "b": 8, "c": 4}, {"a": 1.0, "b": 0.5, "c": 1.0}
    places = Places(
        lambda: sorted(slots),
        slots.__getitem__,
        slots.__contains__,
        lambda wanted, has_prompt: float(wanted.params.max_tokens),
        speeds.__getitem__,
    )
    places.fill()

    async def give(position: int, tokens: int) -> str:
        return await places.take(GenerateRequest(SampleId(0, position, 0), (1,), SamplingParams(tokens)))

    assert [await give(0, 800), await give(1, 200), await give(2, 100)] == ["a", "b", "c"]
    assert await give(3, 100) == "c", "50 tokens a slot, before 100 and, at half the speed, 50"
    made = GenerateRequest(SampleId(0, 0, 0), (1,), SamplingParams(800))
    places.progress("a", made, 600)
    assert await give(4, 600) == "a", "what is made is no load any more"
    places.leave("a", made)
    assert [await give(5, 8), await give(6, 8)] == ["b", "c"]


async def test_a_group_stays_with_its_prompt_until_its_server_is_too_far_behind() -> None:
    slots = {"a": 64, "b": 64}
    places = Places(
        lambda: sorted(slots), slots.__getitem__, slots.__contains__, lambda wanted, has_prompt: 100.0 - 90 * has_prompt
    )
    places.fill()
    members = [await places.take(request(0, k)) for k in range(9)]
    assert members == ["a"] * 8 + ["b"], "once 100 + 7 x 10 tokens are there: 8 x 10, and 90 for the prompt"


async def test_a_server_that_turns_samples_away_gets_fewer_and_then_more_again() -> None:
    places = places_of({"a": 16})
    taken = [request(position) for position in range(19)]
    assert [await places.take(one) for one in taken] == ["a"] * 19
    refused = taken.pop()
    places.refused("a")
    places.leave("a", refused)
    late = asyncio.create_task(places.take(refused))
    for count in range(18, 13, -1):
        await asyncio.sleep(0)
        assert not late.done(), f"{count} of at most 13 are there"
        places.leave("a", taken.pop())
    places.leave("a", taken.pop())
    assert await asyncio.wait_for(late, 5) == "a"
    for _ in range(200):
        places.made("a")
    for position in range(100, 106):
        await asyncio.wait_for(places.take(request(position)), 5)
    assert places.outstanding("a") == 19
