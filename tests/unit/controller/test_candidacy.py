"""Standing by for a run: who leads when, what a standby leaves alone, and when there is nothing to take over (F8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.candidacy import Candidacy, Ended, Seat, announce_end, wanted_servers
from argosy.controller.copies import Copies, RemoteFolder
from argosy.controller.fence import TermFence, folder_leader
from argosy.controller.recovery import CheckpointStore
from argosy.membership.memory import MemoryMembership
from argosy.rpc.gate import Gate
from argosy.rpc.server import RpcServer
from argosy.types.errors import DeadlineError, FencedError, UnavailableError
from argosy.types.records import Leader, Member, MemberState

HANG_S = 30
Enter = Callable[[str], Awaitable[None]]


@pytest.fixture
async def membership() -> AsyncIterator[MemoryMembership]:
    made = MemoryMembership()
    yield made
    await made.close()


@pytest.fixture
async def enter(membership: MemoryMembership) -> AsyncIterator[Enter]:
    """A server of a role, that is healthy and does nothing."""
    servers: list[RpcServer] = []

    async def start(role: str) -> None:
        server = RpcServer.listen("127.0.0.1", gate=Gate(role))
        servers.append(server)
        await server.start()
        await server.serve([])
        await membership.register(Member(f"{role}-0", role, server.address, "life", state=MemberState.READY))

    yield start
    for server in servers:
        await server.stop(0)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config().with_values({
        "algorithm.adv_estimator": "grpo",
        "argosy.placement": "fleet",
        "argosy.run_id": "run",
        "argosy.startup_timeout_s": 20.0,
        "trainer.default_local_dir": str(tmp_path / "run"),
    })  # fmt: skip


class Candidates:
    """Several controllers that stand for the same run."""

    def __init__(self, config: Config, membership: MemoryMembership) -> None:
        self._config = config
        self._membership = membership
        self.told: list[str] = []

    def of(self, config: Config) -> Candidates:
        return Candidates(config, self._membership)

    def stand(self) -> asyncio.Task[Seat | Ended]:
        return asyncio.create_task(Candidacy(self._config, self._membership, self.told.append).stand())

    async def wins(self, standing: asyncio.Task[Seat | Ended]) -> Seat:
        won = await asyncio.wait_for(standing, HANG_S)
        assert isinstance(won, Seat)
        return won


@pytest.fixture
async def candidates(config: Config, membership: MemoryMembership, enter: Enter) -> Candidates:
    for role in ("trainer", "rollout", "reward"):
        await enter(role)
    return Candidates(config, membership)


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_one_leads_and_the_other_takes_over(
    candidates: Candidates, membership: MemoryMembership, config: Config
) -> None:
    first = await candidates.wins(candidates.stand())
    assert (first.leadership.term, first.takes_over, first.cause) == (1, False, "")
    leader = Member(
        first.member_id, "controller", "127.0.0.1:9", "x", state=MemberState.READY,
        capabilities={"run_id": "run", "term": "1"},
    )  # fmt: skip
    await membership.register(leader)
    before = sorted(config.run_folder.rglob("*"))
    standing = candidates.stand()
    await until(lambda: any("stands by" in text for text in candidates.told))
    assert f"stands by: {first.member_id} at 127.0.0.1:9 leads run run with term 1" in candidates.told[-1]
    assert [member.role for member in await membership.members("standby")] == ["standby"]
    assert sorted(config.run_folder.rglob("*")) == before, "who stands by leaves the folder alone"
    assert not standing.done()
    await first.leadership.resign()
    second = await candidates.wins(standing)
    assert (second.leadership.term, second.takes_over, first.stood_by, second.stood_by) == (2, True, False, True)
    assert second.cause == f"{second.member_id} leads with term 2"
    assert await membership.members("standby") == ()
    with pytest.raises(FencedError), first.fence.writing():
        pass


async def test_a_run_that_has_ended_is_not_taken_over(candidates: Candidates, membership: MemoryMembership) -> None:
    first = await candidates.wins(candidates.stand())
    standing = [candidates.stand() for _ in range(2)]
    await until(lambda: len(membership._members) == 5)
    await announce_end(first, "run", "finished", 40)
    await first.leadership.resign()
    for ended in await asyncio.wait_for(asyncio.gather(*standing), HANG_S):
        assert ended == Ended("run", "finished", 40, first.member_id)
    again = await candidates.wins(candidates.stand())  # the same command once more is a new start
    assert again.takes_over
    with pytest.raises(FencedError):
        await announce_end(first, "run", "finished", 41)


async def test_a_term_is_higher_than_what_the_folder_has_seen(candidates: Candidates, config: Config) -> None:
    """An etcd that is new, or has lost its data."""
    TermFence(config.run_folder, Leader("run", 7), "controller-before").take()
    assert (await candidates.wins(candidates.stand())).leadership.term == 8


@pytest.mark.parametrize("run_id", ["run", "another"])
async def test_a_run_that_was_led_on_another_machine_is_taken_over(
    candidates: Candidates, config: Config, tmp_path: Path, run_id: str
) -> None:
    """Nothing is in this one's folder; one server of each kind is enough: others may have died with the leader."""
    url = f"file://{tmp_path}/elsewhere"
    there = tmp_path / "there"
    store = CheckpointStore(there, None)
    store.commit(2, run_id, store.begin(2), {"step": 2})
    Copies(RemoteFolder(url), there, None).add(2, run_id)
    changed = config.with_values({"trainer.default_hdfs_dir": url})
    seat = await candidates.of(changed).wins(candidates.of(changed).stand())
    assert seat.takes_over is (run_id == "run")


async def test_an_etcd_that_is_away_at_the_start_is_told_once(
    candidates: Candidates, membership: MemoryMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address would be waited for in silence."""
    tries = 0
    real = membership.get_state

    async def away(run_id: str, key: str) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise UnavailableError("etcd at 127.0.0.1:1 failed a call")
        return await real(run_id, key)

    monkeypatch.setattr(membership, "get_state", away)
    await candidates.wins(candidates.stand())
    assert sum("waits for etcd, for 20 s at most: etcd at 127.0.0.1:1" in text for text in candidates.told) == 1


async def test_missing_services_are_named_and_nobody_is_shut_out(
    config: Config, membership: MemoryMembership, enter: Enter
) -> None:
    await enter("rollout")
    TermFence(config.run_folder, Leader("run", 3), "controller-before").take()
    short = config.with_values({"argosy.startup_timeout_s": 0.5})
    with pytest.raises(DeadlineError) as caught:
        await Candidates(short, membership).stand()
    assert "1 of 1 servers of the role 'trainer'; start each with `argosy serve trainer`," in str(caught.value)
    assert "`argosy serve reward --name default`" in str(caught.value)
    assert "rollout" not in str(caught.value)
    found = folder_leader(config.run_folder)
    assert found is not None
    assert found.leader.term == 3
    assert await asyncio.wait_for(membership.elect("run", candidate="another"), HANG_S)


def test_who_is_waited_for(config: Config) -> None:
    several = config.with_values({
        "argosy.pools": {"a": {"count": 3}, "b": {"count": 2, "remote": True}},
        "actor_rollout_ref.actor.use_kl_loss": True,
    })  # fmt: skip
    first = {("trainer", "default"): 1, ("reference", "default"): 1, ("reward", "default"): 1}
    assert wanted_servers(several, at_least=False) == first | {("rollout", "a"): 3, ("rollout", "b"): 2}
    assert wanted_servers(several, at_least=True) == first | {("rollout", "a"): 1, ("rollout", "b"): 1}
    fixed = several.with_values({"argosy.colocated": True})
    assert wanted_servers(fixed, at_least=True)["rollout", "a"] == 3
