from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.membership import Membership, server
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdClient, EtcdOptions
from argosy.membership.memory import MemoryMembership


class EtcdProcess:
    """A real etcd on loopback that a test may kill, freeze and start again on the same ports and data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binary = server.find_binary(None)
        self.ports = server.free_ports()
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def endpoint(self) -> str:
        return self.ports.endpoint

    def start(self) -> None:
        self.starts += 1
        name = f"test-{os.getpid()}-{self.starts}"
        argv = server.command(self.binary, name=name, data_dir=self.folder / "data", ports=self.ports)
        with (self.folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not server.is_ours(self.endpoint, name):
            assert self.process.poll() is None, (self.folder / "etcd.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(10)
            self.process = None

    def client(self) -> EtcdClient:
        return EtcdClient(EtcdOptions((self.endpoint,)))

    def lease_count(self) -> int:
        client = self.client()
        try:
            return len(client._client.leasestub.LeaseLeases(client.pb.LeaseLeasesRequest()).leases)
        finally:
            client.close()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """One etcd for every test that only talks to it."""
    process = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    """An etcd of the test's own, to be killed and frozen."""
    process = EtcdProcess(tmp_path)
    process.start()
    yield process
    process.stop()


Connect = Callable[[], Awaitable[Any]]


@pytest.fixture
async def connect_etcd(etcd: EtcdProcess, request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Makes any number of memberships over the shared etcd, on a prefix of this test's own."""
    made: list[EtcdMembership] = []

    async def connect() -> EtcdMembership:
        made.append(EtcdMembership(EtcdOptions((etcd.endpoint,), prefix=f"/{request.node.name}", lease_ttl_s=3)))
        return made[-1]

    yield connect
    for membership in made:
        await membership.close()


@pytest.fixture(params=["memory", "etcd"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[], Awaitable[Membership]]]:
    """The contract's two forms: several handles on one fleet. In memory, every handle is the same object."""
    if request.param == "memory":
        shared = MemoryMembership()

        async def connect() -> Membership:
            return shared

        yield connect
        await shared.close()
    else:
        etcd: EtcdProcess = request.getfixturevalue("etcd")
        made: list[EtcdMembership] = []

        async def connect_one() -> Membership:
            made.append(EtcdMembership(EtcdOptions((etcd.endpoint,), prefix=f"/{request.node.name}", lease_ttl_s=3)))
            return made[-1]

        yield connect_one
        for membership in made:
            await membership.close()
