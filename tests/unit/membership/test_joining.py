"""Joining over a real etcd: two who join at one time get two names, and a fleet outlives its etcd."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from argosy.controller.roster import Roster
from argosy.controller.rosters import open_roster
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.types.errors import StateError
from argosy.types.records import Member, MemberState

NAMES = [f"rollout-{number}" for number in range(8)]


def member(name: str) -> Member:
    return Member(name, "rollout", "127.0.0.1:4711", f"life-of-{name}", state=MemberState.READY)


class Connection:
    async def close(self) -> None:
        pass


class Told:
    """What a roster tells."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def joined(self, one: Member) -> None:
        self.events.append(("joined", one.member_id))

    def changed(self, one: Member) -> None:
        self.events.append((one.state.value, one.member_id))

    def left(self, one: Member) -> None:
        self.events.append(("left", one.member_id))


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - membership tells nobody but the roster
            await asyncio.sleep(0.05)


async def test_names_are_given_once_and_never_those_of_members(connect_etcd: Any) -> None:
    fleet = [await connect_etcd() for _ in range(4)]
    await fleet[0].register(member("rollout-1"))
    given = await asyncio.gather(*(one.claim_name(NAMES, ttl_s=30) for one in fleet))
    assert sorted(given) == ["rollout-0", "rollout-2", "rollout-3", "rollout-4"]
    with pytest.raises(StateError, match="all names are taken"):
        await fleet[0].claim_name(["rollout-0", "rollout-1"], ttl_s=30)


async def test_name_is_free_again_when_nobody_has_registered_under_it(connect_etcd: Any) -> None:
    fleet = await connect_etcd()
    assert await fleet.claim_name(["rollout-0"], ttl_s=2) == "rollout-0"
    async with asyncio.timeout(60):
        while True:
            try:
                assert await fleet.claim_name(["rollout-0"], ttl_s=2) == "rollout-0"
                return
            except StateError:
                await asyncio.sleep(0.2)


async def test_f5_roster_keeps_its_view_while_etcd_is_away_and_follows_it_when_it_is_back(own_etcd: Any) -> None:
    options = EtcdOptions((own_etcd.endpoint,), prefix="/f5", lease_ttl_s=10)
    servers, controller, told = EtcdMembership(options), EtcdMembership(options), Told()
    first = await servers.register(member("rollout-0"))

    def connect(one: Member) -> Connection:
        return Connection()

    roster: Roster[Connection]
    async with open_roster("rollout", connect, controller) as roster:
        roster.subscribe(told)
        await until(lambda: set(roster.clients) == {"rollout-0"})
        own_etcd.stop(signal.SIGKILL)
        await asyncio.sleep(1)
        assert set(roster.clients) == {"rollout-0"}
        own_etcd.start()
        second = await servers.register(member("rollout-1"))
        await until(lambda: set(roster.clients) == {"rollout-0", "rollout-1"})
        assert ("left", "rollout-0") not in told.events
        await first.close()
        await until(lambda: set(roster.clients) == {"rollout-1"})
        await second.update(state=MemberState.DRAINING)
        await until(lambda: told.events[-1] == ("draining", "rollout-1"))
    await servers.close()
    await controller.close()
