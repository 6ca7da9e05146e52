"""One contract, two forms: in memory and in a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from argosy.membership import Membership
from argosy.types.errors import FencedError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Member, MemberState

Connect = Callable[[], Awaitable[Membership]]
VERSION = PolicyVersion("main", 3, "abcd")


def rollout(number: int, incarnation: str = "life") -> Member:
    return Member(
        f"rollout-{number}",
        "rollout",
        f"127.0.0.1:{5000 + number}",
        f"{incarnation}{number}",
        engine="hf",
        capabilities={"slots": "64"},
    )


async def until(
    watch: AsyncIterator[tuple[Member, ...]], wanted: Callable[[tuple[Member, ...]], bool]
) -> tuple[Member, ...]:
    async with asyncio.timeout(10):
        async for snapshot in watch:
            if wanted(snapshot):
                return snapshot
    raise AssertionError("the watch ended")


async def test_a_registered_member_is_seen_with_all_its_fields(connect: Connect) -> None:
    fleet = await connect()
    await fleet.register(rollout(1))
    await fleet.register(Member("reward-0", "reward", "127.0.0.1:6", "r"))
    assert await fleet.members("rollout") == (rollout(1),)
    assert [member.member_id for member in await fleet.members()] == ["reward-0", "rollout-1"]


async def test_watch_sees_join_change_and_leave(connect: Connect) -> None:
    ours, theirs = await connect(), await connect()
    watch = ours.watch("rollout")
    assert await until(watch, lambda seen: True) == ()
    registration = await theirs.register(rollout(1))
    await until(watch, lambda seen: seen == (rollout(1),))
    await registration.update(state=MemberState.STALE)
    await registration.update(state=MemberState.READY, version=VERSION)
    [member] = await until(watch, lambda seen: seen[0].state is MemberState.READY)
    assert member.version == VERSION
    assert member == registration.member
    await registration.close()
    assert await until(watch, lambda seen: not seen) == ()
    with pytest.raises(StateError):
        await registration.update(state=MemberState.READY)


async def test_a_watch_of_one_role_is_silent_about_others(connect: Connect) -> None:
    fleet = await connect()
    watch = fleet.watch("reward")
    await until(watch, lambda seen: seen == ())
    await fleet.register(rollout(1))
    following = asyncio.ensure_future(anext(aiter(watch)))
    await asyncio.sleep(0.3)
    assert not following.done()
    await fleet.register(Member("reward-0", "reward", "127.0.0.1:6", "r"))
    assert [member.member_id for member in await asyncio.wait_for(following, 5)] == ["reward-0"]


async def test_a_slow_watcher_gets_the_newest_only(connect: Connect) -> None:
    fleet = await connect()
    watch = fleet.watch("rollout")
    await until(watch, lambda seen: seen == ())
    registration = await fleet.register(rollout(1))
    for step in range(30):
        await registration.update(version=PolicyVersion("main", step, "d"))
    await asyncio.sleep(0.3)
    snapshots = [await asyncio.wait_for(anext(aiter(watch)), 5)]
    assert snapshots[0][0].version == PolicyVersion("main", 29, "d")


async def test_the_newest_process_with_an_id_wins(connect: Connect) -> None:
    ours, theirs = await connect(), await connect()
    first = await ours.register(rollout(1, "old"))
    second = await theirs.register(rollout(1, "new"))
    await asyncio.wait_for(first.wait_superseded(), 10)
    assert first.superseded
    assert not second.superseded
    with pytest.raises(StateError):
        await first.update(state=MemberState.READY)
    await first.close()  # the loser's goodbye must not take the winner's entry away
    assert [member.incarnation for member in await ours.members("rollout")] == ["new1"]


async def test_terms_rise_and_the_seat_is_handed_over(connect: Connect) -> None:
    ours, theirs = await connect(), await connect()
    assert await ours.current_term("run") == 0
    first = await ours.elect("run", candidate="a")
    assert first.term == 1
    waiting = asyncio.ensure_future(theirs.elect("run", candidate="b"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert (await ours.elect("other-run", candidate="a")).term == 1
    await first.resign()
    second = await asyncio.wait_for(waiting, 5)
    assert (first.lost, second.lost, second.term) == (True, False, 2)
    assert await ours.current_term("run") == 2
    await second.resign()
    assert (await ours.elect("run", candidate="c", min_term=10)).term == 10


async def test_only_the_newest_term_writes_state(connect: Connect) -> None:
    fleet = await connect()
    assert await fleet.get_state("run", "latest") is None
    with pytest.raises(FencedError):
        await fleet.put_state("run", "latest", "x", term=1)
    first = await fleet.elect("run", candidate="a")
    revision = await fleet.put_state("run", "latest", "step-1", term=first.term)
    stored = await fleet.get_state("run", "latest")
    assert stored is not None
    assert (stored.value, stored.revision) == ("step-1", revision)
    await first.resign()
    second = await fleet.elect("run", candidate="b")
    for refused in (first.term, second.term + 1):
        with pytest.raises(FencedError) as caught:
            await fleet.put_state("run", "latest", "stale", term=refused)
        assert caught.value.metadata["current_term"] == str(second.term)
        with pytest.raises(FencedError):
            await fleet.compare_and_swap("run", "latest", "stale", expected_revision=revision, term=refused)
    assert await fleet.get_state("run", "latest") == stored


async def test_compare_and_swap_lets_one_writer_through(connect: Connect) -> None:
    fleet = await connect()
    term = (await fleet.elect("run", candidate="a")).term
    first = await fleet.compare_and_swap("run", "latest", "1", expected_revision=0, term=term)
    assert first is not None
    assert await fleet.compare_and_swap("run", "latest", "other", expected_revision=0, term=term) is None
    second = await fleet.compare_and_swap("run", "latest", "2", expected_revision=first.revision, term=term)
    assert second is not None
    assert second.revision > first.revision
    assert await fleet.get_state("run", "latest") == second
    assert await fleet.get_state("another", "latest") is None


async def test_close_ends_watches(connect: Connect) -> None:
    fleet = await connect()
    await fleet.register(rollout(1))

    async def follow() -> int:
        return len([snapshot async for snapshot in fleet.watch()])

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0.3)
    await fleet.close()
    assert await asyncio.wait_for(following, 5) >= 1
