"""A real etcd cluster on loopback whose servers a test may kill, freeze and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from argosy.membership import server
from argosy.membership.etcd_client import EtcdClient, EtcdOptions
from argosy.types.errors import UnavailableError

READY_S = 60.0


class EtcdNode:
    """One server of a cluster, on the same ports and data over all its lives."""

    def __init__(self, folder: Path, name: str, binary: server.EtcdBinary) -> None:
        self.name = name
        self.folder = folder
        self.ports = server.free_ports()
        self.process: subprocess.Popen[bytes] | None = None
        self._binary = binary

    @property
    def endpoint(self) -> str:
        return self.ports.endpoint

    @property
    def peer(self) -> str:
        return f"{self.name}=http://127.0.0.1:{self.ports.peer}"

    def start(self, cluster: Sequence[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = server.command(self._binary, name=self.name, data_dir=self.folder / "data", ports=self.ports)
        argv = [word for word in argv if not word.startswith("--initial-cluster=")]
        argv += [f"--initial-cluster={','.join(cluster)}", "--initial-cluster-token=test"]
        with (self.folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return (self.folder / "etcd.log").read_text()


class EtcdCluster:
    """As many servers as are asked for; one is a cluster too."""

    def __init__(self, folder: Path, size: int) -> None:
        binary = server.find_binary(None)
        self.nodes = [EtcdNode(folder / f"etcd-{n}", f"test-{os.getpid()}-{n}", binary) for n in range(size)]

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(node.endpoint for node in self.nodes)

    def start(self) -> None:
        """All that don't run; returns when the cluster has a leader and serves."""
        peers = [node.peer for node in self.nodes]
        for node in self.nodes:
            if node.process is None:
                node.start(peers)
        self.wait_serving()

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        for node in self.nodes:
            node.stop(number)

    def wait_serving(self) -> None:
        """Until a read of every running server goes through the majority."""
        deadline = time.monotonic() + READY_S
        for node in self.nodes:
            client = EtcdClient(EtcdOptions((node.endpoint,), timeout_s=1.0))
            try:
                while not _answers(client):
                    assert node.process is not None, f"{node.name} was not started"
                    assert node.process.poll() is None, node.log()
                    assert time.monotonic() < deadline, node.log()
                    time.sleep(0.05)
            finally:
                client.close()

    def leader(self) -> EtcdNode:
        """The server that leads the cluster, by its own word."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for node in self.nodes:
                if node.process is not None and _leads(node.endpoint):
                    return node
            time.sleep(0.05)
        raise AssertionError("no server leads")


def compact(*nodes: EtcdNode) -> int:
    """Forget all history of their cluster up to now; the revision."""
    client = EtcdClient(EtcdOptions(tuple(node.endpoint for node in nodes), timeout_s=5.0))
    try:
        _, revision = client.range("/", prefix=True)
        client._client.kvstub.Compact(client.pb.CompactionRequest(revision=revision, physical=True))
        return revision
    finally:
        client.close()


def _answers(client: EtcdClient) -> bool:
    try:
        client.range("/any")
    except UnavailableError:
        return False
    return True


def _leads(endpoint: str) -> bool:
    client = EtcdClient(EtcdOptions((endpoint,), timeout_s=1.0))
    try:
        status = client.pb.MaintenanceStub(client._client.channel).Status(client.pb.StatusRequest(), timeout=1.0)
        return bool(status.leader) and status.leader == status.header.member_id
    except grpc.RpcError:
        return False
    finally:
        client.close()


@contextmanager
def etcd_cluster(folder: Path, size: int) -> Iterator[EtcdCluster]:
    """A running cluster; its processes are gone afterwards."""
    cluster = EtcdCluster(folder, size)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
