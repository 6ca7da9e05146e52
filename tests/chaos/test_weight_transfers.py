"""Weight transfers whose ends are killed or stopped half way: it costs the deadline at most, and nothing stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from argosy.types.errors import DeadlineError, NotFoundError, UnavailableError
from argosy.types.records import TransferOffer
from argosy.weightsync import Snapshot, Staging
from argosy.weightsync.collective.process import close_idle
from argosy.weightsync.hosts import host_id
from argosy.weightsync.transports import SendOptions, TransferPlan, shared_memory
from argosy.weightsync.transports import collective as transport
from support.freezing import freeze

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

SIZE = 96 << 20
OPTIONS = SendOptions(bucket_bytes=1 << 16)
"""Small buckets: there is a long way to be stopped on."""
DEADLINE_S = 60.0

SENDER = """
import asyncio, sys, torch
from argosy.weightsync import Snapshot
from argosy.weightsync.transports import SendOptions, TransferPlan, collective, shared_memory
async def main():
    snapshot = Snapshot.freeze("main", 1, {{"a": torch.ones({size}, dtype=torch.uint8)}})
    memory = await shared_memory.open_transfer(snapshot, TransferPlan("s", 1, 60, "f"), SendOptions())
    offer = memory.offers[0]
    print(offer.endpoint, offer.options["file_id"], offer.options["size_bytes"], flush=True)
    sending = await collective.open_transfer(snapshot, TransferPlan("s", 1, 60, "f"), SendOptions(bucket_bytes=1 << 16))
    print(sending.offers[0].endpoint, sending.worker_pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.fixture
async def snapshot() -> Snapshot:
    return Snapshot.freeze("main", 1, {"a": torch.ones(SIZE, dtype=torch.uint8)})


@pytest.fixture(autouse=True)
async def _nothing_stays() -> AsyncIterator[None]:
    """Every worker has ended when its transfers have."""
    yield
    close_idle()
    assert workers() == set()


@pytest.fixture
def sender() -> Iterator[subprocess.Popen[str]]:
    """A process that offers ones by both transports."""
    code = SENDER.format(size=SIZE)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def workers() -> set[int]:
    found = set()
    for child in psutil.Process().children():
        try:
            if "collective.worker" in " ".join(child.cmdline()):
                found.add(child.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):  # it is over, as another test's may be
            continue
    return found


async def started(staging: Staging) -> None:
    """Until the first bucket is there, and not the last."""
    while not staging.buffer.memory[0]:  # noqa: ASYNC110 - another process writes there, and tells nobody
        await asyncio.sleep(0.001)
    assert not staging.buffer.memory[-1], "it was over before it could be stopped"


async def gone(pid: int) -> None:
    end = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, f"process {pid} is still there"
        await asyncio.sleep(0.05)


async def test_d10_a_sender_killed_half_way(snapshot: Snapshot, sender: subprocess.Popen[str]) -> None:
    """The trainer itself dies: its worker dies with it, the receiver learns it at once and has nothing whole."""
    assert sender.stdout is not None
    memory = (await asyncio.to_thread(sender.stdout.readline)).split()
    endpoint, worker_pid = (await asyncio.to_thread(sender.stdout.readline)).split()
    version = snapshot.manifest.version
    options = {"group": "f/0", "backend": "gloo", "bucket_bytes": str(OPTIONS.bucket_bytes)}
    offer = TransferOffer("collective", "s", version, endpoint, 1, 2, options)
    staging = Staging(snapshot.manifest)
    receiving = asyncio.create_task(transport.receive(offer, snapshot, snapshot.manifest, staging, DEADLINE_S))
    await started(staging)
    sender.kill()
    with pytest.raises(UnavailableError):
        await receiving
    await gone(int(worker_pid))
    assert staging.received_byte_count == 0
    assert not await asyncio.to_thread(Path(memory[0]).exists), "an anonymous memory file goes with its process"
    late = TransferOffer("shared_memory", "s", version, memory[0], options={
        "file_id": memory[1], "size_bytes": memory[2], "host_id": host_id(),
    })  # fmt: skip
    with pytest.raises(NotFoundError):
        await shared_memory.receive(late, snapshot, snapshot.manifest, Staging(snapshot.manifest), DEADLINE_S)


async def test_d10_one_receiver_stalls_and_the_other_commits(snapshot: Snapshot) -> None:
    """A stopped receiver costs itself the deadline; a stopped sender's worker would do the same to all of its own."""
    opened = await transport.open_transfer(snapshot, TransferPlan("s", 2, DEADLINE_S, "f"), OPTIONS)
    before = workers()
    stalled, whole = Staging(snapshot.manifest), Staging(snapshot.manifest)
    first = asyncio.create_task(transport.receive(opened.offers[0], snapshot, snapshot.manifest, stalled, 12.0))
    await started(stalled)
    (pid,) = workers() - before
    freeze(pid)
    begun = time.monotonic()
    await transport.receive(opened.offers[1], snapshot, snapshot.manifest, whole, DEADLINE_S)
    whole.finish()
    with pytest.raises(DeadlineError):
        await first
    assert time.monotonic() - begun < DEADLINE_S - 5
    assert stalled.received_byte_count == 0
    await gone(pid)
    await opened.close()
    await gone(opened.worker_pid)


async def test_d10_a_sender_that_stops_costs_the_deadline(snapshot: Snapshot) -> None:
    opened = await transport.open_transfer(snapshot, TransferPlan("s", 1, DEADLINE_S, "f"), OPTIONS)
    freeze(opened.worker_pid)
    begun = time.monotonic()
    with pytest.raises((DeadlineError, UnavailableError)):
        await transport.receive(opened.offers[0], snapshot, snapshot.manifest, Staging(snapshot.manifest), 3.0)
    assert time.monotonic() - begun < 3 + 12  # a hang guard
    await opened.close()  # also of a stopped process
    await gone(opened.worker_pid)


async def test_d10_a_receiver_killed_half_way_leaves_the_sender_for_the_next(snapshot: Snapshot) -> None:
    opened = await transport.open_transfer(snapshot, TransferPlan("s", 1, DEADLINE_S, "f"), OPTIONS)
    before = workers()
    staging = Staging(snapshot.manifest)
    receiving = asyncio.create_task(transport.receive(opened.offers[0], snapshot, snapshot.manifest, staging, 30))
    await started(staging)
    (pid,) = workers() - before
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="ended with code -9"):
        await receiving
    await opened.close()
    again = await transport.open_transfer(snapshot, TransferPlan("s", 1, DEADLINE_S, "g"), OPTIONS)
    fresh = Staging(snapshot.manifest)
    await transport.receive(again.offers[0], snapshot, snapshot.manifest, fresh, DEADLINE_S)
    assert torch.equal(fresh.finish()["a"], snapshot.tensors()["a"])
    await again.close()
