"""etcd is away while a run trains: it goes on with the servers that it knows, and heals when etcd is back (F6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from argosy.cli.main import main
from argosy.controller.ledger.lives import read_lives
from chaos.test_membership import goes_on, live
from chaos.test_run_ends import processes_of
from support.etcd_cluster import EtcdCluster, etcd_cluster
from support.joining import Joiner, members, trained, within
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

TTL_S = 2
ANSWER_S = 20.0
"""A hang guard for a command that only looks."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("etcd-outage"))


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, request.param) as running:
        yield running


def reaches(cluster: EtcdCluster) -> tuple[str, ...]:
    return (
        f"argosy.membership.endpoints=[{','.join(cluster.endpoints)}]", f"argosy.membership.lease_ttl_s={TTL_S}",
        "argosy.max_staleness=1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "away_s"),
    [(1, 4.0 * TTL_S), pytest.param(1, 150.0, marks=pytest.mark.soak), pytest.param(3, 150.0, marks=pytest.mark.soak)],
    indirect=["cluster"],
    ids=["one server", "one server for minutes", "three servers for minutes"],
)
@pytest.mark.timeout(600)
def test_f6_training_goes_on_while_etcd_is_away(
    job: ToyJob, cluster: EtcdCluster, away_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    run = f"away-{len(cluster.nodes)}-{away_s:g}"
    folder = job.folder / run
    with live(job, run, *reaches(cluster)) as process:
        cluster.stop()
        began = time.monotonic()
        while time.monotonic() - began < away_s:
            goes_on(job, run, process)
            for command in ("status", "members"):
                asked = time.monotonic()
                assert main([command, "--run", str(folder), "--json"]) == 0
                assert time.monotonic() - asked < ANSWER_S
                out, err = capsys.readouterr()
                assert command == "status" or ("rollout-0" in out and "members as they last were" in out), out + err
        assert {one.state.value for one in members(folder)} <= {"ready", "stale"}, "nobody is taken for lost"
        cluster.start()
        joiner = Joiner(folder, "rollout")
        assert joiner.wait("ready").member_id == "rollout-1"
        within(lambda: trained(folder, "rollout-1"), "a trained sample of one that came afterwards")
        goes_on(job, run, process)
        there = {one.member_id: one.error for one in members(folder)}
        assert there.keys() >= {"controller-0", "trainer-0", "rollout-0", "rollout-1", "reward-0"}, "all that were"
        assert there["controller-0"] == "", "as they are now"
        joiner.kill()
    log = (folder / "logs" / "rollout-0.log").read_text()
    assert log.count("goes on with what it knows") <= 2, log  # at 2 s and at 20 s
    lines = [line for line in log.splitlines() if "etcd" in line]
    assert len(lines) < 20, f"an outage fills no log: {lines}"
    assert job.metrics(run)[-1].get("rollout/lost_servers", 0) <= 1, "only the one that was killed at the end"
    assert [life.term for life in read_lives(folder / "ledger")] == [1], "nobody took over"


@pytest.mark.soak
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_f6_a_trainer_that_dies_while_etcd_is_away_comes_back_with_it(job: ToyJob, cluster: EtcdCluster) -> None:
    """Its next life can't register, and waits for that: it would use up the restarts otherwise."""
    run = "away-death"
    folder = job.folder / run
    with live(job, run, *reaches(cluster), "argosy.restart.limit=1", "trainer.save_freq=3") as process:
        within(lambda: (folder / "latest_checkpointed_iteration.txt").exists(), "a checkpoint")
        cluster.stop()
        processes_of(folder)["trainer-0"].kill()
        log = folder / "logs" / "trainer-0.log"
        within(lambda: log.read_text().count("can't register yet") == 4, "half a minute of waiting")
        assert process.poll() is None, process.communicate()
        cluster.start()
        goes_on(job, run, process)
    assert [life.lineage for life in read_lives(folder / "ledger")] == ["l0", "l1"]
    assert log.read_text().count("can't register yet") <= 5
