"""What only a real etcd can do to us: compaction, restarts, freezes, lost leases (cases F5, F6, F8)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from argosy.membership import etcd_watch
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions, _target
from argosy.types.errors import ConfigError, UnavailableError
from argosy.types.records import Member, MemberState
from support.freezing import freeze

TTL_S = 2


def member(name: str, incarnation: str = "life") -> Member:
    return Member(name, "rollout", "127.0.0.1:1", incarnation)


def options(etcd: Any, ttl_s: int = TTL_S) -> EtcdOptions:
    return EtcdOptions((etcd.endpoint,), prefix="/fleet", lease_ttl_s=ttl_s, timeout_s=2.0)


class Follower:
    """Collects the snapshots of a watch."""

    def __init__(self, watch: AsyncIterator[tuple[Member, ...]]) -> None:
        self.snapshots: list[tuple[Member, ...]] = []
        self._task = asyncio.ensure_future(self._follow(watch))

    async def _follow(self, watch: AsyncIterator[tuple[Member, ...]]) -> None:
        async for snapshot in watch:
            self.snapshots.append(snapshot)

    @property
    def names(self) -> list[str]:
        return [member.member_id for member in self.snapshots[-1]] if self.snapshots else []

    async def until(self, wanted: Callable[[], bool], timeout_s: float = 15) -> None:
        async with asyncio.timeout(timeout_s):
            while not wanted():
                assert not self._task.done()
                await asyncio.sleep(0.02)


async def test_f5_compaction_while_the_watch_is_cut_off_loses_nothing(
    own_etcd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 changes and a delete happen, and are compacted away, between the reading and the watch."""
    fleet = EtcdMembership(options(own_etcd))
    client = own_etcd.client()
    leaving = await fleet.register(member("rollout-leaving"))
    cut, resume = threading.Event(), threading.Event()
    original = etcd_watch.PrefixWatch._requests

    def cut_off(self: Any, start_revision: int, done: threading.Event) -> Any:
        if not resume.is_set():
            cut.set()
            resume.wait(20)
        return original(self, start_revision, done)

    monkeypatch.setattr(etcd_watch.PrefixWatch, "_requests", cut_off)
    seen = Follower(fleet.watch())
    await seen.until(lambda: seen.names == ["rollout-leaving"])
    await asyncio.to_thread(cut.wait, 10)
    staying = await fleet.register(member("rollout-staying"))
    for _ in range(10):
        await staying.update(state=MemberState.READY)
        await staying.update(state=MemberState.STALE)
    await leaving.close()
    _, revision = await asyncio.to_thread(client.range, "/fleet/members/", prefix=True)
    pb = client.pb
    await asyncio.to_thread(client._client.kvstub.Compact, pb.CompactionRequest(revision=revision, physical=True))
    resume.set()
    await seen.until(lambda: seen.names == ["rollout-staying"])
    assert seen.snapshots[-1] == (staying.member,)
    await staying.update(state=MemberState.READY)  # and it still follows
    await seen.until(lambda: seen.snapshots[-1][0].state is MemberState.READY)
    client.close()
    await fleet.close()


@pytest.mark.chaos
async def test_f6_etcd_down_for_longer_than_the_lease_costs_nothing(
    own_etcd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The others keep the last snapshot, changes made meanwhile arrive, and the process idles, its log too."""
    ours, theirs = EtcdMembership(options(own_etcd)), EtcdMembership(options(own_etcd))
    seen = Follower(theirs.watch())
    registration = await ours.register(member("rollout-0"))
    leadership = await ours.elect("run", candidate="a")
    await seen.until(lambda: seen.names == ["rollout-0"])
    before = len(seen.snapshots)
    own_etcd.stop(signal.SIGKILL)
    for state in (MemberState.READY, MemberState.STALE) * 3:  # kept for later
        await registration.update(state=state)
    with pytest.raises(UnavailableError):
        await ours.put_state("run", "k", "v", term=leadership.term)
    used = psutil.Process().cpu_times()
    await asyncio.sleep(2 * TTL_S)
    spent = psutil.Process().cpu_times()
    assert spent.user + spent.system - used.user - used.system < 0.25 * 2 * TTL_S
    assert len(seen.snapshots) == before
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("will publish its changes when etcd is back" in line for line in told) == 1
    assert sum("could not renew its lease" in line for line in told) <= 2, "once for the member, once for the leader"
    own_etcd.start()
    await seen.until(lambda: bool(seen.names) and seen.snapshots[-1][0].state is MemberState.STALE)
    await asyncio.sleep(TTL_S * 2)  # past everything that could still expire
    assert seen.names == ["rollout-0"]
    assert (registration.superseded, leadership.lost) == (False, False)
    healed = [record.getMessage() for record in caplog.records if "reaches etcd again" in record.getMessage()]
    assert sorted(line.split()[0] for line in healed) == ["leader", "member"], "each once"
    await ours.put_state("run", "k", "v", term=leadership.term)
    await ours.close()
    await theirs.close()


@pytest.mark.chaos
async def test_f6_an_etcd_that_lost_its_data_gets_the_members_again(own_etcd: Any) -> None:
    """A watch at a revision of the lost history would wait for ever."""
    fleet = EtcdMembership(options(own_etcd))
    for _ in range(5):
        await (await fleet.register(member("rollout-gone"))).close()
    seen = Follower(fleet.watch())
    await fleet.register(member("rollout-0"))
    await seen.until(lambda: seen.names == ["rollout-0"])
    own_etcd.stop(signal.SIGKILL)
    (own_etcd.folder / "data").rename(own_etcd.folder / "lost")
    own_etcd.start()
    await seen.until(lambda: bool(seen.snapshots[-1]) and seen.snapshots[-1][0].incarnation == "life.2")
    await fleet.register(member("rollout-1"))
    await seen.until(lambda: seen.names == ["rollout-0", "rollout-1"])
    await fleet.close()


MEMBER_PROGRAM = """
import asyncio, sys
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.types.records import Member, MemberState

async def main():
    endpoint, name, incarnation, busy_s = sys.argv[1:]
    fleet = EtcdMembership(EtcdOptions((endpoint,), prefix="/fleet", lease_ttl_s=2))
    leadership = await fleet.elect("run", candidate=incarnation)
    registration = await fleet.register(Member(name, "rollout", "127.0.0.1:1", incarnation))
    await registration.update(state=MemberState.READY)
    print("term", leadership.term, flush=True)
    if float(busy_s):
        import time
        end = time.monotonic() + float(busy_s)
        while time.monotonic() < end:   # the event loop and the interpreter lock are taken
            pass
        print("done", flush=True)
        await asyncio.sleep(60)
    await asyncio.wait([asyncio.ensure_future(registration.wait_superseded()),
                        asyncio.ensure_future(leadership.wait_lost())], return_when=asyncio.ALL_COMPLETED)
    try:
        await fleet.put_state("run", "checkpoint", "of the old leader", term=leadership.term)
    except Exception as error:
        print(type(error).__name__, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def run_member(own_etcd: Any, tmp_path: Path) -> Any:
    running: list[subprocess.Popen[str]] = []

    def run(name: str, incarnation: str, busy_s: float = 0) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", MEMBER_PROGRAM, own_etcd.endpoint, name, incarnation, str(busy_s)]
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 20)).strip()


@pytest.mark.chaos
async def test_f6_a_busy_interpreter_keeps_its_lease(own_etcd: Any, run_member: Any) -> None:
    fleet = EtcdMembership(options(own_etcd))
    seen = Follower(fleet.watch())
    process = run_member("rollout-0", "a", busy_s=4 * TTL_S)
    assert await line_of(process) == "term 1"
    await seen.until(lambda: bool(seen.names) and seen.snapshots[-1][0].state is MemberState.READY)
    before = len(seen.snapshots)
    assert await line_of(process) == "done"
    assert len(seen.snapshots) == before
    assert seen.snapshots[-1][0].incarnation == "a"
    await fleet.close()


@pytest.mark.chaos
async def test_f6_a_frozen_member_is_gone_for_others_and_comes_back_with_another_incarnation(
    own_etcd: Any, run_member: Any
) -> None:
    fleet = EtcdMembership(options(own_etcd))
    seen = Follower(fleet.watch())
    process = run_member("rollout-0", "a")
    await line_of(process)
    await seen.until(lambda: seen.names == ["rollout-0"])
    await asyncio.to_thread(freeze, process.pid)
    await seen.until(lambda: seen.names == [])
    process.send_signal(signal.SIGCONT)
    await seen.until(lambda: seen.names == ["rollout-0"])
    assert seen.snapshots[-1][0].incarnation == "a.2"
    await asyncio.sleep(TTL_S + 1)
    assert seen.names == ["rollout-0"]
    assert await asyncio.to_thread(own_etcd.lease_count) == 2  # the member's and the leader's
    await fleet.close()


@pytest.mark.chaos
async def test_f8_a_frozen_leader_and_member_find_themselves_replaced(own_etcd: Any, run_member: Any) -> None:
    old = run_member("rollout-0", "old")
    assert await line_of(old) == "term 1"
    await asyncio.to_thread(freeze, old.pid)
    new = run_member("rollout-0", "new")
    assert await line_of(new) == "term 2"
    old.send_signal(signal.SIGCONT)
    assert await line_of(old) == "FencedError"
    fleet = EtcdMembership(options(own_etcd))
    assert [one.incarnation for one in await fleet.members()] == ["new"]
    assert await fleet.current_term("run") == 2
    await fleet.close()


async def test_a_stopped_member_is_gone_at_once_and_a_killed_one_is_taken_over(own_etcd: Any) -> None:
    fleet = EtcdMembership(options(own_etcd, ttl_s=60))
    for incarnation in ("first", "second"):  # the first is never closed: as after kill -9
        await fleet.register(member("rollout-0", incarnation))
    assert [one.incarnation for one in await fleet.members()] == ["second"]
    assert await asyncio.to_thread(own_etcd.lease_count) == 1
    assert await fleet.forget_members() == 1
    assert await fleet.members() == ()
    await fleet.close()


async def test_a_frozen_etcd_is_an_error_within_the_timeout(own_etcd: Any) -> None:
    fleet = EtcdMembership(options(own_etcd))
    await fleet.current_term("run")
    await asyncio.to_thread(freeze, own_etcd.process.pid)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="DEADLINE_EXCEEDED"):
        await fleet.current_term("run")
    assert time.monotonic() - began < 15  # a hang guard
    own_etcd.send(signal.SIGCONT)
    assert await fleet.current_term("run") == 0
    await fleet.close()


async def test_a_foreign_key_among_the_members_is_passed_over(own_etcd: Any, caplog: pytest.LogCaptureFixture) -> None:
    fleet = EtcdMembership(options(own_etcd))
    await fleet.register(member("rollout-0"))
    client = own_etcd.client()
    put = client.pb.PutRequest(key=b"/fleet/members/x", value=b"{not json")
    await asyncio.to_thread(client.txn, [], [client.pb.RequestOp(request_put=put)])
    assert [one.member_id for one in await fleet.members()] == ["rollout-0"]
    assert "/fleet/members/x" in caplog.text
    client.close()
    await fleet.close()


async def test_an_absent_etcd_is_a_clear_error() -> None:
    fleet = EtcdMembership(EtcdOptions(("127.0.0.1:1",), timeout_s=1.0))
    with pytest.raises(UnavailableError, match=r"etcd at 127\.0\.0\.1:1 .*Is it running"):
        await fleet.register(member("rollout-0"))
    await fleet.close()


@pytest.mark.parametrize("endpoints", [(), ("localhost",), (":2379",), ("host:port",)])
def test_bad_endpoints_are_refused(endpoints: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="endpoints"):
        EtcdOptions(endpoints)


def test_targets_of_several_endpoints() -> None:
    assert _target(["etcd.local:2379"]) == ("etcd.local", 2379)
    assert _target(["127.0.0.1:1", "127.0.0.2:2", "localhost:3"]) == ("ipv4:127.0.0.1:1,127.0.0.2:2,127.0.0.1", 3)


def test_the_password_is_not_shown() -> None:
    assert "hunter2" not in repr(EtcdOptions(("h:1",), user="root", password="hunter2"))


async def test_passwords_work_and_tokens_are_renewed_after_a_restart(own_etcd: Any) -> None:
    admin = own_etcd.client()
    pb, auth = admin.pb, admin._auth
    auth.UserAdd(pb.AuthUserAddRequest(name="root", password="hunter2"))
    auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user="root", role="root"))
    auth.AuthEnable(pb.AuthEnableRequest())
    admin.close()
    stranger = EtcdMembership(options(own_etcd))
    with pytest.raises(UnavailableError, match="user name is empty"):
        await stranger.members()
    await stranger.close()
    fleet = EtcdMembership(EtcdOptions((own_etcd.endpoint,), user="root", password="hunter2", lease_ttl_s=TTL_S))
    await fleet.register(member("rollout-0"))
    own_etcd.stop()
    own_etcd.start()
    assert [one.member_id for one in await fleet.members()] == ["rollout-0"]
    await fleet.close()
