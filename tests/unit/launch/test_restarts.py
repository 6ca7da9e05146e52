"""Children that die are started again: real processes, which count their lives in a file."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.controller.launch.errors import ChildDiedError
from argosy.controller.launch.process import ChildSpec
from argosy.controller.launch.restarts import RestartBook, RestartPolicy
from argosy.controller.launch.supervisor import FAILURE_FILE, Supervisor

AT_ONCE = RestartPolicy(3, first_wait_s=0.01)


def child(folder: Path, name: str, ends: str = "time.sleep(600)", *, group: str = "") -> ChildSpec:
    """Writes a line for each of its lives into `folder/name`, then does `ends`."""
    code = f"import os, sys, time; open({str(folder / name)!r}, 'a').write(f'{{os.getpid()}}\\n'); {ends}"
    return ChildSpec(name, [sys.executable, "-c", code], group=group)


def lives(folder: Path, name: str) -> list[int]:
    path = folder / name
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what processes do sets no event
            await asyncio.sleep(0.01)


def same(spec: ChildSpec, spare: bool) -> ChildSpec:
    return spec


async def test_a_dead_child_is_started_again_and_the_setback_told(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        supervisor.allow_restarts(AT_ONCE, same)
        await supervisor.start(child(tmp_path, "trainer-0"))
        await wait_until(lambda: len(lives(tmp_path, "trainer-0")) == 1)
        os.kill(lives(tmp_path, "trainer-0")[0], signal.SIGKILL)
        setback = await asyncio.wait_for(asyncio.shield(supervisor.setback), 30)
        assert str(setback).startswith("trainer-0 died: killed by SIGKILL")
        assert isinstance(setback.cause, ChildDiedError)
        await wait_until(lambda: len(lives(tmp_path, "trainer-0")) == 2)
        await wait_until(lambda: "trainer-0" not in supervisor.lost)
        assert not supervisor.failed.done()
        [now] = supervisor.children
        assert now.pid == lives(tmp_path, "trainer-0")[1]
    assert now.returncode == -signal.SIGTERM, "the new life ends with the block, as the old one would have"


async def test_one_that_others_stand_in_for_is_no_setback(tmp_path: Path) -> None:
    seen: list[bool] = []

    def renew(spec: ChildSpec, spare: bool) -> ChildSpec:
        seen.append(spare)
        return dataclasses.replace(spec, argv=[*spec.argv, "again"])

    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        supervisor.allow_restarts(AT_ONCE, renew)
        supervisor.allow_losses("rollout")
        for name in ("rollout-0", "rollout-1"):
            await supervisor.start(child(tmp_path, name, group="rollout"))
        await wait_until(lambda: bool(lives(tmp_path, "rollout-0") and lives(tmp_path, "rollout-1")))
        os.kill(lives(tmp_path, "rollout-0")[0], signal.SIGKILL)
        await wait_until(lambda: len(lives(tmp_path, "rollout-0")) == 2)
        assert seen == [True]
        assert not supervisor.setback.done()
        assert [one.spec.argv[-1] for one in supervisor.children if one.spec.name == "rollout-0"] == ["again"]


@pytest.mark.parametrize("ready", [True, False])
async def test_one_that_comes_up_stands_in_for_nobody_yet(tmp_path: Path, ready: bool) -> None:
    """Both reward servers of two are killed within a start: samples that nobody can judge ended the run."""
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        supervisor.allow_restarts(AT_ONCE, same)
        supervisor.allow_losses("reward")
        for name in ("reward-0", "reward-1"):
            await supervisor.start(child(tmp_path, name, group="reward"))
        await wait_until(lambda: bool(lives(tmp_path, "reward-0") and lives(tmp_path, "reward-1")))
        os.kill(lives(tmp_path, "reward-0")[0], signal.SIGKILL)
        await wait_until(lambda: len(lives(tmp_path, "reward-0")) == 2)
        assert supervisor.unready == {"reward-0"}
        if ready:
            supervisor.unready.discard("reward-0")
        os.kill(lives(tmp_path, "reward-1")[0], signal.SIGKILL)
        await wait_until(lambda: len(lives(tmp_path, "reward-1")) == 2)
        assert supervisor.setback.done() is not ready
        assert not supervisor.failed.done()


async def test_one_that_dies_again_and_again_ends_the_run_with_the_first_cause(tmp_path: Path) -> None:
    ends = f"print('life', len(open({str(tmp_path / 'trainer-0')!r}).readlines()), flush=True); sys.exit(7)"
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        supervisor.allow_restarts(AT_ONCE, same)
        await supervisor.start(child(tmp_path, "trainer-0", ends))
        error = await asyncio.wait_for(asyncio.shield(supervisor.failed), 60)
    assert len(lives(tmp_path, "trainer-0")) == 4, "the first life and three restarts"
    assert error.returncode == 7
    assert "  life 1" in str(error), "the first one's last lines"
    assert "  life 4" not in str(error)
    assert str(error).endswith("It was started again 3 times, and died again; the last time: exit code 7.")
    assert "started again 3 times" in (tmp_path / FAILURE_FILE).read_text()


@pytest.mark.parametrize("reason", ["limit", "renew"])
async def test_what_may_not_be_started_again_fails_at_once(tmp_path: Path, reason: str) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        if reason == "limit":
            supervisor.allow_restarts(RestartPolicy(0), same)
        else:
            supervisor.allow_restarts(AT_ONCE, lambda spec, spare: None)
        await supervisor.start(child(tmp_path, "etcd", "sys.exit(3)"))
        error = await asyncio.wait_for(asyncio.shield(supervisor.failed), 30)
    assert len(lives(tmp_path, "etcd")) == 1
    assert "started again" not in str(error)


async def test_the_end_of_the_run_does_not_wait_for_a_restart(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        supervisor.allow_restarts(RestartPolicy(5, first_wait_s=600, longest_wait_s=600), same)
        await supervisor.start(child(tmp_path, "trainer-0", "sys.exit(3)"))
        await wait_until(lambda: len(lives(tmp_path, "trainer-0")) == 2)  # the first restart comes at once
        await wait_until(lambda: "trainer-0" in supervisor.lost and not supervisor.children)
        ending = asyncio.ensure_future(supervisor.stop())
        await asyncio.wait_for(ending, 30)
    assert len(lives(tmp_path, "trainer-0")) == 2


@pytest.mark.parametrize("state", ["running", "waiting to be started again"])
async def test_a_retired_child_is_not_started_again(tmp_path: Path, state: str) -> None:
    wait = RestartPolicy(5, first_wait_s=600, longest_wait_s=600)
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        supervisor.allow_restarts(wait, same)
        await supervisor.start(child(tmp_path, "rollout-1", "time.sleep(600)" if state == "running" else "sys.exit(3)"))
        if state == "running":
            await wait_until(lambda: len(lives(tmp_path, "rollout-1")) == 1)
        else:
            await wait_until(lambda: "rollout-1" in supervisor.lost and len(lives(tmp_path, "rollout-1")) == 2)
        before = len(lives(tmp_path, "rollout-1"))
        await asyncio.wait_for(supervisor.retire("rollout-1"), 30)
        assert supervisor.children == ()
        assert not supervisor.failed.done()
        assert "rollout-1" not in supervisor.lost
        await supervisor.start(child(tmp_path, "rollout-1"))  # its name is free again
        await wait_until(lambda: len(lives(tmp_path, "rollout-1")) == before + 1)


def test_deaths_of_more_than_an_hour_ago_don_t_count() -> None:
    now = 0.0
    book = RestartBook(RestartPolicy(2, window_s=3600), clock=lambda: now)
    death = ChildDiedError("trainer-0", -9, Path("log"), ["first"])
    assert [book.wait_s(death), book.wait_s(death), book.wait_s(death)] == [0.0, 0.5, None]
    assert book.wait_s(ChildDiedError("critic-0", 1, Path("log"), [])) == 0.0, "each child by itself"
    now = 3601.0
    assert book.wait_s(death) == 0.0
