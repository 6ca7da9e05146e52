"""Servers on other hosts, and what a network does to them: everything lost, half of it, a slow and lossy link.

The other hosts are network namespaces of this machine (`support.network`), so that the kernel's TCP and real packets
are what is tried; the run is the toy job, asynchronous, with each service started by hand over a real etcd. When the
last test is over, the run ends, its books are checked, and the times are told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from argosy.controller.ledger.check import check_ledger
from support.etcd_cluster import etcd_cluster
from support.fleet_job import FleetJob
from support.joining import members, trained
from support.network import Host, Network, why_not
from support.tcp_proxy import TcpProxy
from support.toy import make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("network")]

NO_HOSTS = why_not()
TTL_S = 3
AWAY_S = 2.5 * TTL_S
"""Longer than the lease."""
KEYS = (
    "argosy.deterministic=false", "argosy.max_staleness=1", "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.actor.optim.lr=2e-3", "data.max_response_length=24", "trainer.save_freq=20",
    "trainer.max_actor_ckpt_to_keep=2", "argosy.export_hf=false", "trainer.total_training_steps=100000",
    "argosy.allow_remote_hosts=true", "argosy.rpc.deadline_s=20", "argosy.weight_sync.transport=stream",
)  # fmt: skip
FAR, FAR_REWARD = "rollout-far", "reward-far"


class Split:
    """A run whose one rollout and reward server are near, and whose others are far, on a host each."""

    def __init__(self, fleet: FleetJob, network: Network, etcd: TcpProxy) -> None:
        self.fleet = fleet
        self.network = network
        self.host: Host = network.hosts["far"]
        self.reward_host: Host = network.hosts["scores"]
        self.took: dict[str, float] = {}
        """Seconds from the end of a fault until the far server was at work again."""
        for role in ("trainer", "reward"):
            fleet.serve(role, at=network.near)
        fleet.serve("rollout", "rollout-near", at=network.near)
        fleet.serve("rollout", FAR, on=self.host, endpoints=[etcd.endpoint])
        fleet.serve("reward", FAR_REWARD, on=self.reward_host, endpoints=[etcd.endpoint])
        fleet.control("a")
        self.until_far_works("at the beginning")

    @property
    def names(self) -> set[str]:
        """Rollout and reward servers, as the controller has them."""
        return {member.member_id for role in ("rollout", "reward") for member in members(self.fleet.folder, role)}

    def until_steps(self, count: int, what: str) -> None:
        """So many more steps; every process lives."""
        wanted = max(self.fleet.steps(), default=0) + count
        self.fleet.until(lambda: max(self.fleet.steps(), default=0) >= wanted, what, *self.fleet.processes)

    def until_far_works(self, what: str) -> None:
        """Until samples are trained that were sent to the far server after this moment."""
        now = time.time()
        self.fleet.until(
            lambda: trained(self.fleet.folder, FAR, after=now), f"samples of {FAR}, {what}", *self.fleet.processes
        )
        self.took[what] = time.time() - now

    def until_replicas(self, count: int, what: str) -> None:
        """Until a step ends with so many reward servers."""
        began = time.time()

        def has() -> bool:
            rows = self.fleet.job.metrics(self.fleet.run)
            return any(value == count for key, value in rows[-1].items() if key.endswith("/replicas"))

        self.fleet.until(has, f"{count} reward servers {what}", *self.fleet.processes)
        self.took[what] = time.time() - began

    def ends_with_its_books_in_order(self) -> None:
        """Nothing is lost, or trained twice."""
        self.fleet.processes["a"].terminate()
        code, shown = self.fleet.end("a")
        assert code == 143, shown
        assert check_ledger(self.fleet.folder).faults == []
        rows = trained(self.fleet.folder)
        assert len(rows) == len({row["sample_id"] for row in rows}) == 64 * self.fleet.steps()[-1]
        told = "; ".join(f"{what}: {seconds:.1f} s" for what, seconds in self.took.items() if what)
        print(f"\nnetwork namespaces; at work {told}")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    if NO_HOSTS:
        pytest.skip(NO_HOSTS)
    job = make_toy_job(tmp_path_factory.mktemp("network"))
    folder: Path = tmp_path_factory.mktemp("network-etcd")
    with (
        Network("far", "scores") as network,
        etcd_cluster(folder, 1) as cluster,
        TcpProxy(cluster.endpoints[0], network.etcd) as etcd,
    ):
        fleet = FleetJob(job, "split", cluster.endpoints, ttl_s=TTL_S, overrides=KEYS)
        try:
            made = Split(fleet, network, etcd)
            yield made
            made.ends_with_its_books_in_order()
        finally:
            fleet.close()


def test_f5_a_partition_of_all_that_is_longer_than_the_lease(split: Split) -> None:
    split.host.cut()
    cut = time.monotonic()
    split.fleet.until(lambda: FAR not in split.names, "its lease ends", *split.fleet.processes)
    split.until_steps(2, "steps without it")
    time.sleep(max(0.0, AWAY_S - (time.monotonic() - cut)))
    split.host.join()
    split.until_far_works("after the partition")


def test_f5_a_partition_from_etcd_alone(split: Split) -> None:
    split.host.lose(split.network.etcd)
    cut = time.monotonic()
    split.fleet.until(lambda: FAR not in split.names, "its lease ends", *split.fleet.processes)
    split.until_steps(2, "steps without it")
    time.sleep(max(0.0, AWAY_S - (time.monotonic() - cut)))
    split.host.find(split.network.etcd)
    split.until_far_works("when it has registered anew")


def test_a_partition_from_controller_and_trainer_alone(split: Split) -> None:
    """Its lease lives on: what it doesn't answer has to be noticed by those who wait for it."""
    split.host.lose(split.network.near)
    split.until_steps(6, "steps with one server that nobody can reach")
    assert FAR in split.names
    split.host.find(split.network.near)
    split.until_far_works("when it can be reached again")


def test_a_partition_of_a_reward_server(split: Split) -> None:
    split.until_replicas(2, "")
    split.reward_host.cut()
    cut = time.monotonic()
    split.until_steps(4, "steps without its scores")
    split.until_replicas(1, "")
    time.sleep(max(0.0, AWAY_S - (time.monotonic() - cut)))
    split.reward_host.join()
    split.until_replicas(2, "again as a reward server")
    rows = split.fleet.job.metrics(split.fleet.run)
    assert all(row["reward/failed_fraction"] == 0 for row in rows), "what it had is scored by the other"


@pytest.mark.soak
def test_a_link_that_is_slow_late_and_lossy(split: Split, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights take seconds over it, and half of its packets may come late; the link breaks down in the middle, too."""
    before = split.host.dropped()
    split.host.squeeze("2mbit")
    split.until_steps(4, "steps over a slow link")
    split.host.cut()
    split.until_steps(2, "steps after a partition amid weights")
    split.host.join()
    split.until_far_works("over a slow link")
    dropped = split.host.dropped() - before
    split.host.clear()
    late = split.host.disturb()
    if late:
        split.until_far_works("with late and lost packets")
        split.host.clear()
    with capsys.disabled():
        netem = "netem: 100 ms and 1 % loss" if late else "the kernel has no netem"
        print(f"\nnetwork: namespaces; a token bucket of 2 Mbit/s dropped {dropped} packets; {netem}")
    assert dropped > 0
