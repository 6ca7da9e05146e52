"""Services of a fleet that a run can't do without: gone, born again, or only cut off from etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from argosy.controller import placement_fleet
from argosy.controller.candidacy import Seat
from argosy.controller.launch.errors import SetbackError
from argosy.controller.placement_fleet import FleetWatch
from argosy.membership.interface import Registration
from argosy.membership.memory import MemoryMembership
from argosy.rpc.gate import Gate
from argosy.rpc.server import RpcServer
from argosy.types.errors import UnavailableError
from argosy.types.records import Member, MemberState

HANG_S = 30


class Watched:
    """A trainer that is there, and a watch that is about it."""

    def __init__(self) -> None:
        self.membership = MemoryMembership()
        nothing: Any = None
        self.seat = Seat(self.membership, nothing, "controller", nothing, takes_over=False)

    async def begin(self) -> None:
        self.server = RpcServer.listen("127.0.0.1", gate=Gate("trainer-0"))
        await self.server.start()
        await self.server.serve([])
        self.entry: Registration = await self.register("life")
        self.watch = FleetWatch({"trainer": self.entry.member}, ttl_s=0.1)
        self.following = asyncio.create_task(self.watch.follow(self.seat))
        await asyncio.sleep(0)

    async def register(self, incarnation: str) -> Registration:
        member = Member("trainer-0", "trainer", self.server.address, incarnation, state=MemberState.READY)
        return await self.membership.register(member)

    async def end(self) -> None:
        self.following.cancel()
        self.watch.close()
        await self.server.stop(0)
        await self.membership.close()


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(placement_fleet, "RETURN_S", 0.05)
    made = Watched()
    await made.begin()
    yield made
    await made.end()


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_trainer_that_was_started_again_is_a_setback(watched: Watched) -> None:
    """Of the work that can be begun anew; what stands around that goes on."""
    racing = asyncio.create_task(watched.watch.race(for_ever(), setbacks=True))
    around = asyncio.create_task(watched.watch.race(for_ever()))
    await watched.register("life.2")  # its lease was lost and taken anew: the same process
    await asyncio.sleep(0.1)
    assert not racing.done()
    await watched.register("another")
    with pytest.raises(SetbackError, match="was started again"):
        await asyncio.wait_for(racing, HANG_S)
    assert not around.done()
    around.cancel()


async def test_a_trainer_without_an_entry_counts_as_there_while_it_serves(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    racing = asyncio.create_task(watched.watch.race(for_ever(), setbacks=True))
    await watched.entry.close()
    async with asyncio.timeout(HANG_S):
        while "has no entry in membership, and serves" not in caplog.text:
            assert not racing.done()
            await asyncio.sleep(0.01)
    await watched.server.stop(0)
    with pytest.raises(SetbackError, match="trainer-0 has left the fleet"):
        await asyncio.wait_for(racing, HANG_S)


async def test_a_call_that_fails_first_is_told_as_the_death_behind_it(watched: Watched) -> None:
    async def call() -> None:
        await watched.server.stop(0)
        await watched.entry.close()
        raise UnavailableError("the connection was lost")

    with pytest.raises(SetbackError, match="has left the fleet") as caught:
        await asyncio.wait_for(watched.watch.race(call(), setbacks=True), HANG_S)
    assert "the connection was lost" in str(caught.value.__cause__)


async def test_other_failures_are_their_own(watched: Watched) -> None:
    async def fail() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await watched.watch.race(fail(), setbacks=True)
    assert await watched.watch.race(asyncio.sleep(0, "done")) == "done"


async def test_after_a_recovery_it_is_about_the_new_one(watched: Watched) -> None:
    await watched.register("another")
    with pytest.raises(SetbackError):
        await watched.watch.race(for_ever(), setbacks=True)
    [member] = await watched.membership.members("trainer")
    watched.watch.renew({"trainer": member})
    assert await watched.watch.race(asyncio.sleep(0.1, "done"), setbacks=True) == "done"
