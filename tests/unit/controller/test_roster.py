"""The roster equals membership whatever the order of joins, deaths and rebirths, and closes each connection once."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.controller.live import LeftError
from argosy.controller.roster import Roster
from argosy.controller.rosters import open_roster
from argosy.membership.memory import MemoryMembership, MemoryRegistration
from argosy.types.errors import InternalError, UnavailableError
from argosy.types.records import Member, MemberState

IDS = ("rollout-0", "rollout-1", "rollout-2")


class Connection:
    """Of one life of a member."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Fleet:
    """A roster over MemoryMembership, everything that it connected to, and what it told."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.told: list[tuple[str, str]] = []

    def connect(self, member: Member) -> Connection:
        self.connections.append(Connection(member))
        return self.connections[-1]

    def joined(self, member: Member) -> None:
        self.told.append(("joined", member.incarnation))

    def changed(self, member: Member) -> None:
        self.told.append((member.state.value, member.incarnation))

    def left(self, member: Member) -> None:
        self.told.append(("left", member.incarnation))


def member(member_id: str = "rollout-0", incarnation: str = "a", **fields: Any) -> Member:
    values: dict[str, Any] = {"state": MemberState.READY} | fields
    return Member(member_id, "rollout", "127.0.0.1:4711", incarnation, **values)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the roster has no event for those who test it
            await asyncio.sleep(0)


Event = tuple[str, str, MemberState, bool]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "rebirth", "state", "die", "lease"]),
        st.sampled_from(IDS),
        st.sampled_from(list(MemberState)),
        st.booleans(),
    ),
    min_size=3,
    max_size=30,
)
"""What happens, to whom, its state then, and whether the roster sees it before the next thing happens."""


@given(events=EVENTS)
@settings(max_examples=150, deadline=None)
def test_roster_equals_the_snapshot_and_closes_each_connection_once(events: list[Event]) -> None:
    asyncio.run(_follow(events))


async def _follow(events: list[Event]) -> None:
    membership, fleet, numbers = MemoryMembership(), Fleet(), itertools.count()
    entries: dict[str, MemoryRegistration] = {}
    dead: set[str] = set()
    """Lives whose process has ended, while their entry is there until its lease ends."""

    def there() -> dict[str, str]:
        """What must be in the roster: id → life."""
        found = [one.member for one in entries.values() if one.member.state is not MemberState.JOINING]
        return {one.member_id: life_of(one) for one in found if life_of(one) not in dead}

    async with open_roster("rollout", fleet.connect, membership) as roster:
        roster.subscribe(fleet)

        def is_equal() -> bool:
            return {name: life_of(client.member) for name, client in roster.clients.items()} == there()

        for what, name, state, is_seen in events:
            entry = entries.get(name)
            if what == "rebirth" or (what == "join" and entry is None):
                entries[name] = await membership.register(member(name, f"{name}-{next(numbers)}", state=state))
            elif entry is not None and what == "leave":
                await entries.pop(name).close()
            elif entry is not None and what == "state":
                await entry.update(state=state)
            elif entry is not None and what == "lease":  # lost, and taken anew by the same process
                again = dataclasses.replace(entry.member, incarnation=f"{life_of(entry.member)}.{next(numbers)}")
                entries[name] = await membership.register(again)
            elif entry is not None and what == "die":
                roster.died(name, entry.member.incarnation)
                dead.add(life_of(entry.member))
                assert name in roster.lost
            if is_seen:
                await until(is_equal)
        await until(is_equal)
        await until(lambda: all(one.closed for one in fleet.connections if life_of(one.member) not in there().values()))
        assert not {name for name, life in there().items() if name in roster.lost or life in dead}
        assert {life_of(one.member) for one in fleet.connections if not one.closed} == set(there().values())
    assert [one.closed for one in fleet.connections] == [1] * len(fleet.connections)
    assert Counter(what for what, _ in fleet.told)["joined"] == len(fleet.connections)
    await membership.close()


def life_of(one: Member) -> str:
    """Its incarnation without what a lease that was taken anew adds."""
    return one.incarnation.partition(".")[0]


async def test_listener_hears_of_joining_draining_and_leaving_in_order() -> None:
    fleet = Fleet()
    roster = Roster("rollout", fleet.connect)
    roster.subscribe(fleet)
    roster.update([member(state=MemberState.JOINING)])
    roster.update([member(state=MemberState.STALE)])
    roster.update([member(state=MemberState.READY)])
    roster.update([member(state=MemberState.DRAINING)])
    roster.update([])
    assert fleet.told == [("joined", "a"), ("ready", "a"), ("draining", "a"), ("left", "a")]
    await roster.close()


async def test_another_life_under_the_same_id_is_another_server() -> None:
    fleet = Fleet()
    roster = Roster("rollout", fleet.connect, [member(incarnation="a")])
    roster.subscribe(fleet)
    roster.update([member(incarnation="b", pool="fast")])
    assert fleet.told == [("left", "a"), ("joined", "b")]
    assert roster.clients["rollout-0"] is fleet.connections[1]
    assert roster.pools == {"rollout-0": "fast"}
    await until(lambda: [one.closed for one in fleet.connections] == [1, 0])
    await roster.close()


async def test_case_f6_lease_lost_and_taken_anew_costs_nothing_where_nobody_saw_it_missing() -> None:
    fleet = Fleet()
    roster = Roster("rollout", fleet.connect, [member(incarnation="a")])
    roster.subscribe(fleet)
    roster.update([dataclasses.replace(member(incarnation="a"), incarnation="a.2")])
    assert fleet.told == []
    assert len(fleet.connections) == 1
    await roster.close()


async def test_death_of_a_process_counts_before_its_lease_ends_and_until_it_is_born_again() -> None:
    fleet = Fleet()
    roster = Roster("rollout", fleet.connect, [member(incarnation="a")])
    roster.died("rollout-0", "a")
    assert not roster.clients
    assert roster.lost == {"rollout-0"}
    roster.update([member(incarnation="a")])  # its lease goes on for a while
    assert not roster.clients
    roster.update([])
    assert roster.lost == {"rollout-0"}
    roster.update([member(incarnation="b")])
    assert roster.lost == set()
    assert list(roster.clients) == ["rollout-0"]
    await roster.close()


async def test_member_that_has_left_is_unavailable_to_whoever_asks_for_it() -> None:
    roster = Roster("rollout", Fleet().connect, [member()])
    clients = roster.clients
    roster.update([])
    with pytest.raises(UnavailableError, match="rollout-0 has left the fleet") as caught:
        clients["rollout-0"]
    assert isinstance(caught.value, LeftError)
    assert clients.get("rollout-0") is None
    await roster.close()


async def test_fixed_roster_keeps_its_servers_and_says_once_whom_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    roster = Roster("rollout", fleet.connect, [member(incarnation="a")], fixed=True)
    others = [member(incarnation="b"), member("rollout-1", "c")]
    with caplog.at_level(logging.WARNING):
        roster.update([member(incarnation="a"), others[1]])
        roster.update(others)
        roster.update(others)
        roster.update([])
    assert list(roster.clients) == ["rollout-0"]
    assert len(fleet.connections) == 1
    refused = [record.getMessage() for record in caplog.records]
    assert len(refused) == 2
    assert all("argosy.deterministic or argosy.colocated keeps the servers" in line for line in refused)
    roster.renew([member(incarnation="d")])
    assert roster.clients["rollout-0"] is fleet.connections[1]
    await roster.close()


async def test_server_of_an_unknown_pool_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    roster = Roster("rollout", Fleet().connect, accepts=lambda one: one.pool == "default")
    with caplog.at_level(logging.WARNING):
        roster.update([member(pool="fast"), member("rollout-1", "b")])
    assert list(roster.clients) == ["rollout-1"]
    assert "its pool 'fast' is none of this run's" in caplog.text
    await roster.close()


async def test_defect_that_ends_the_following_is_raised_to_those_who_use_the_servers() -> None:
    class Broken(MemoryMembership):
        async def watch(self, role: str | None = None) -> AsyncIterator[tuple[Member, ...]]:
            raise RuntimeError("no such thing")
            yield ()

    async with open_roster("rollout", Fleet().connect, Broken(), [member()]) as roster:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(InternalError, match="no such thing"):
            set(roster.clients)
