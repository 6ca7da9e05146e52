"""What etcd can do to a fleet, with one server and with three: members, watches and a leader get over it (F5, F6)."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.types.errors import UnavailableError
from argosy.types.records import Member, MemberState
from support.etcd_cluster import EtcdCluster, EtcdNode, compact, etcd_cluster
from support.freezing import freeze

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

TTL_S = 3
HANG_S = 60.0


@pytest.fixture(params=[1, 3])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, request.param) as running:
        yield running


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, 3) as running:
        yield running


class Fleet:
    """Memberships over a cluster, a member with its watcher, and a leader: what a run has of it."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        self.made: list[EtcdMembership] = []
        self.seen: tuple[Member, ...] = ()
        self.snapshots = 0

    def connect(self, *nodes: EtcdNode) -> EtcdMembership:
        endpoints = tuple(node.endpoint for node in nodes) or self.cluster.endpoints
        self.made.append(EtcdMembership(EtcdOptions(endpoints, prefix="/fleet", lease_ttl_s=TTL_S, timeout_s=1.5)))
        return self.made[-1]

    async def begin(self) -> None:
        self.ours, theirs = self.connect(), self.connect()
        self.registration = await self.ours.register(Member("rollout-0", "rollout", "127.0.0.1:1", "life"))
        self.leadership = await self.ours.elect("run", candidate="a")
        self.following = asyncio.create_task(self.follow(theirs))
        await self.until(lambda: self.names == ["rollout-0"], "the member is seen")

    async def follow(self, membership: EtcdMembership) -> None:
        async for snapshot in membership.watch():
            self.seen = snapshot
            self.snapshots += 1

    @property
    def names(self) -> list[str]:
        return [member.member_id for member in self.seen]

    def is_seen_as(self, state: MemberState) -> bool:
        return self.names == ["rollout-0"] and self.seen[0].state is state

    async def until(self, wanted: Callable[[], Any], what: str) -> None:
        try:
            async with asyncio.timeout(HANG_S):
                while not wanted():
                    assert not self.following.done(), self.following.exception()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not within {HANG_S} s: {what}; seen: {self.seen}") from None

    async def heals(self) -> None:
        """A change reaches the watcher, and the leader still writes with its term."""
        await self.registration.update(state=MemberState.READY)
        await self.until(lambda: self.is_seen_as(MemberState.READY), "a change is seen")
        async with asyncio.timeout(HANG_S):
            while True:
                try:
                    await self.ours.put_state("run", "step", "1", term=self.leadership.term)
                    break
                except UnavailableError:
                    await asyncio.sleep(0.1)
        assert (self.registration.superseded, self.leadership.lost, self.leadership.term) == (False, False, 1)


@pytest.fixture
async def fleet(cluster: EtcdCluster) -> AsyncIterator[Fleet]:
    async for made in begun(cluster):
        yield made


@pytest.fixture
async def fleet_of_three(three: EtcdCluster) -> AsyncIterator[Fleet]:
    async for made in begun(three):
        yield made


async def begun(cluster: EtcdCluster) -> AsyncIterator[Fleet]:
    fleet = Fleet(cluster)
    try:
        await fleet.begin()
        yield fleet
    finally:
        fleet.following.cancel()
        await asyncio.gather(*(membership.close() for membership in fleet.made))


async def test_f6_all_servers_killed_and_started_again(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.cluster.stop, signal.SIGKILL)
    before = fleet.snapshots
    with pytest.raises(UnavailableError):
        await fleet.ours.put_state("run", "step", "0", term=1)
    assert (fleet.names, fleet.snapshots) == (["rollout-0"], before), "the last view stays"
    await asyncio.to_thread(fleet.cluster.start)
    await fleet.heals()


async def test_f6_down_for_longer_than_the_lease(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """With nobody who could lead: the leader goes on, says so once, and is the leader still (ADR 25)."""
    before = fleet.snapshots
    await asyncio.to_thread(fleet.cluster.stop, signal.SIGKILL)
    await fleet.until(lambda: "leader a of run could not renew its lease" in caplog.text, "it tells")
    assert not fleet.leadership.lost
    assert (fleet.names, fleet.snapshots) == (["rollout-0"], before)
    await asyncio.to_thread(fleet.cluster.start)
    await fleet.heals()
    assert caplog.text.count("leader a of run could not renew its lease") == 1


async def test_f6_an_etcd_that_lost_its_data_keeps_its_leader(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stands by lets the leader come back, and never leads with a term that there was before."""
    keeper: Any = fleet.leadership._keeper
    let, reclaim = threading.Event(), keeper._reclaim

    def when_let(lease: int) -> bool:
        assert let.wait(HANG_S)
        return bool(reclaim(lease))

    monkeypatch.setattr(keeper, "_reclaim", when_let)
    theirs = fleet.connect()
    standing = asyncio.create_task(theirs.elect("run", candidate="b"))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(fleet.cluster.stop, signal.SIGKILL)
    for node in fleet.cluster.nodes:
        shutil.rmtree(node.folder / "data")
    await asyncio.to_thread(fleet.cluster.start)
    with pytest.raises(UnavailableError, match="has lost its data"):  # and not that another one leads
        await fleet.ours.put_state("run", "step", "1", term=1)
    let.set()
    await fleet.until(lambda: fleet.names == ["rollout-0"] and fleet.seen[0].incarnation == "life.2", "back")
    await fleet.heals()
    assert not standing.done()
    await fleet.leadership.resign()
    assert (await asyncio.wait_for(standing, HANG_S)).term == 2


async def test_f6_an_etcd_that_lost_its_data_and_a_leader_that_does_not_come_back(fleet: Fleet) -> None:
    theirs = fleet.connect()
    standing = asyncio.create_task(theirs.elect("run", candidate="b"))
    await asyncio.sleep(0.5)
    keeper: Any = fleet.leadership._keeper
    keeper._stop.set()  # as a process that is no more
    await asyncio.to_thread(fleet.cluster.stop, signal.SIGKILL)
    for node in fleet.cluster.nodes:
        shutil.rmtree(node.folder / "data")
    await asyncio.to_thread(fleet.cluster.start)
    assert (await asyncio.wait_for(standing, HANG_S)).term == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_f6_the_leader_of_etcd_is_lost(fleet_of_three: Fleet, number: signal.Signals) -> None:
    """Killed or frozen: the two others go on, and a frozen one that wakes up does no harm."""
    fleet = fleet_of_three
    leading = await asyncio.to_thread(fleet.cluster.leader)
    if number is signal.SIGKILL:
        await asyncio.to_thread(leading.stop, number)
    else:
        await asyncio.to_thread(freeze, leading.pid)
    await fleet.heals()
    if number is signal.SIGSTOP:
        assert leading.process is not None
        leading.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(fleet.cluster.start)
    await fleet.registration.update(state=MemberState.STALE)
    await fleet.until(lambda: fleet.is_seen_as(MemberState.STALE), "it still follows")
    await fleet.heals()


async def test_f5_a_watch_whose_server_slept_through_changes_and_their_compaction(fleet_of_three: Fleet) -> None:
    """20 changes, one of them a leave, on the other two servers; then a compaction; then the server wakes up."""
    fleet = fleet_of_three
    leading = await asyncio.to_thread(fleet.cluster.leader)
    sleeper, *others = [node for node in fleet.cluster.nodes if node is not leading] + [leading]
    fleet.following.cancel()
    leaving = await fleet.ours.register(Member("rollout-leaving", "rollout", "127.0.0.1:2", "l"))
    fleet.following = asyncio.create_task(fleet.follow(fleet.connect(sleeper)))
    await fleet.until(lambda: fleet.names == ["rollout-0", "rollout-leaving"], "both are seen")
    await asyncio.to_thread(freeze, sleeper.pid)
    writer = fleet.connect(*others)
    for number in range(19):
        await writer.put_state("run", f"key-{number}", "x", term=1)
        await fleet.registration.update(state=MemberState.READY if number % 2 else MemberState.STALE)
    await leaving.close()
    await asyncio.to_thread(compact, *others)
    assert sleeper.process is not None
    sleeper.process.send_signal(signal.SIGCONT)
    await fleet.until(lambda: fleet.seen == (fleet.registration.member,), "the view is the store's")
    await fleet.heals()
