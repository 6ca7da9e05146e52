"""etcd's start and its deaths, as its user meets them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from argosy.config import Config
from argosy.controller.launch.etcd import start_etcd
from argosy.controller.launch.fleet import LocalFleet
from argosy.controller.launch.restarts import RestartPolicy
from argosy.controller.launch.supervisor import Supervisor
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.types.errors import StorageError, UnavailableError
from argosy.types.records import Member
from support.storm.trouble import small_disk

START_S = 60


async def test_a_full_disk_is_called_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        supervisor = Supervisor(tmp_path / "logs", grace_s=5.0)
        try:
            with pytest.raises(StorageError, match=r"no space left while writing .*: free some"):
                await start_etcd(supervisor, None, disk / "etcd", timeout_s=START_S)
        finally:
            await supervisor.stop()


async def test_f6_one_that_dies_is_back_where_it_was_and_one_that_dies_always_ends_the_run(tmp_path: Path) -> None:
    fleet = LocalFleet(Config(), tmp_path)
    data = tmp_path / "etcd"
    async with Supervisor(tmp_path / "logs", grace_s=5.0) as supervisor:
        endpoint = await start_etcd(supervisor, None, data, timeout_s=START_S)
        supervisor.allow_restarts(RestartPolicy(3, first_wait_s=0.01), fleet._renewed)
        membership = EtcdMembership(EtcdOptions((endpoint,), lease_ttl_s=60))
        try:
            await membership.register(Member("rollout-0", "rollout", "127.0.0.1:1", "life"))
            first = supervisor.children[0].pid
            os.kill(first, signal.SIGKILL)
            [still] = await answered(membership)
            assert (still.member_id, still.incarnation) == ("rollout-0", "life"), "its lease and entry are in the data"
            assert supervisor.children[0].pid != first
            assert not supervisor.setback.done()

            for file in (data / "member" / "wal").glob("*.wal"):
                file.write_bytes(b"damaged" * 1000)
            os.kill(supervisor.children[0].pid, signal.SIGKILL)
            told = str(await asyncio.wait_for(asyncio.shield(supervisor.failed), START_S))
            assert told.startswith("etcd died: killed by SIGKILL")
            assert "It was started again 3 times, and died again; the last time: exit code " in told
            assert '"level":"fatal"' in told, "and why it can't come back"
        finally:
            await membership.close()


async def answered(membership: EtcdMembership) -> tuple[Member, ...]:
    """The members, once etcd has come back."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await membership.members()
            except UnavailableError:
                await asyncio.sleep(0.05)
