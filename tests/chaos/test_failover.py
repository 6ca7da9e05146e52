"""Controllers of one run: one leads, the others stand by, and nothing is done twice (case F8).

Real processes over a real etcd: four services and two controllers, each started by hand.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.cli.main import main
from argosy.controller.ledger.check import check_ledger
from argosy.controller.recording.store import Record
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.rpc.clients.controller import ControllerClient
from argosy.rpc.clients.critic import CriticClient
from argosy.rpc.clients.leading import find_leader
from argosy.rpc.clients.policy import PolicyClient
from argosy.rpc.clients.rollout import RolloutClient
from argosy.types.errors import FencedError
from argosy.types.records import Member, Mutation
from support.etcd_cluster import EtcdCluster, etcd_cluster
from support.fleet_job import FleetJob
from support.freezing import freeze
from support.joining import Joiner, trained, within
from support.tcp_proxy import TcpProxy
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

STEPS = 36
REFUSED = ("must stop", "must step down", "leads this run now")
"""What a leader is told whose term is over: by the folder, by services, by etcd."""
KEYS = ("trainer.save_freq=2", f"trainer.total_training_steps={STEPS}")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("failover"))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("failover-etcd"), 1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def unbroken(job: ToyJob) -> list[dict[str, Any]]:
    """What each step of the run trains when nothing happens to it."""
    code, out, err = job.run("unbroken", *KEYS, "argosy.placement=inprocess", "trainer.val_before_train=False")
    assert code == 0, out + err
    return job.trained("unbroken")


@pytest.fixture
def fleet(job: ToyJob, etcd: EtcdCluster, request: pytest.FixtureRequest) -> Iterator[FleetJob]:
    made = FleetJob(job, request.node.name.partition("[")[0].removeprefix("test_"), etcd.endpoints, overrides=KEYS)
    yield made
    made.close()


def led_by(fleet: FleetJob, term: int) -> bool:
    found = fleet.leader()
    return found is not None and found.leader.term == term


def begin(fleet: FleetJob, *standbys: str, after_step: int) -> None:
    """All services, a leader `a` that has done some steps, and controllers that stand by."""
    fleet.serve_all()
    fleet.control("a")
    fleet.until(lambda: led_by(fleet, 1), "a leads", "a", *fleet.processes)
    for name in standbys:
        fleet.control(name)
    fleet.until(lambda: all("stands by: " in fleet.output(name) for name in standbys), "all stand by", "a", *standbys)
    fleet.until(lambda: max(fleet.steps(), default=0) >= after_step, "steps are trained", "a", *standbys)


def assert_unbroken(fleet: FleetJob, unbroken: list[dict[str, Any]]) -> None:
    """Every step is there once, and has trained what it would have without the takeover."""
    assert fleet.steps() == list(range(1, STEPS + 1))
    assert fleet.job.trained(fleet.run) == unbroken
    assert check_ledger(fleet.folder).faults == []


def leader(fleet: FleetJob) -> Member | None:
    """Who leads, as everybody can find out."""

    async def ask() -> Member | None:
        membership = EtcdMembership(EtcdOptions(tuple(fleet.endpoints), prefix=fleet.prefix))
        try:
            return await find_leader(membership, fleet.run)
        finally:
            await membership.close()

    return asyncio.run(ask())


def name_of_leader(fleet: FleetJob, term: int) -> str:
    """The controller that leads with a term, as this test calls it."""

    def leads() -> bool:
        found = leader(fleet)
        return found is not None and found.capabilities["term"] == str(term)

    fleet.until(leads, f"somebody leads with term {term}")
    found = leader(fleet)
    assert found is not None
    [name] = [name for name, process in fleet.processes.items() if str(process.pid) == found.capabilities["pid"]]
    assert json.loads((fleet.folder / "endpoint.json").read_text())["address"] == found.address
    return name


def test_f8_leaders_are_killed_and_stopped_and_the_run_is_the_same(
    fleet: FleetJob, unbroken: list[dict[str, Any]]
) -> None:
    begin(fleet, "b", "c", "d", after_step=3)
    assert name_of_leader(fleet, 1) == "a"
    fleet.processes["a"].kill()
    second = name_of_leader(fleet, 2)
    fleet.until(lambda: len(fleet.lives()) == 2 and fleet.steps()[-1] >= 5, "steps of the second leader", second)
    fleet.processes[second].send_signal(signal.SIGTERM)
    assert fleet.end(second)[0] == 143
    ended = {name: fleet.end(name) for name in {"b", "c", "d"} - {second}}
    assert [code for code, _ in ended.values()] == [0, 0], ended
    assert sorted(f"run {fleet.run} has finished at step {STEPS}" in shown for _, shown in ended.values()) == [
        False,
        True,
    ]
    assert [(life["lineage"], life["term"]) for life in fleet.lives()] == [("l0", 1), ("l1", 2), ("l2", 3)]
    assert_unbroken(fleet, unbroken)
    assert not (fleet.folder / "endpoint.json").exists()
    # The trainer has these weights still: a run that begins must not begin with them.
    fleet.control("other", f"trainer.default_local_dir={fleet.job.folder}/elsewhere")
    code, shown = fleet.end("other")
    assert code == 1, shown
    assert f"the trainer is at step {STEPS}, and this run begins" in shown


def test_f8_a_leader_that_stood_still_is_refused_everywhere(fleet: FleetJob, unbroken: list[dict[str, Any]]) -> None:
    begin(fleet, "b", after_step=3)
    freeze(fleet.processes["a"].pid)
    fleet.until(lambda: len(fleet.lives()) == 2, "b leads", "b")
    fleet.processes["a"].send_signal(signal.SIGCONT)
    code, shown = fleet.end("a")
    assert code == 1, shown
    assert any(words in shown for words in REFUSED), shown
    code, shown = fleet.end("b")
    assert code == 0, shown
    assert "resumed from" in shown
    assert_unbroken(fleet, unbroken)


def shown_by(capsys: pytest.CaptureFixture[str], command: str, fleet: FleetJob) -> Any:
    """What `argosy status` or `argosy members` shows of the run, as a user asks."""
    assert main([command, "--run", str(fleet.folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


async def act_as(fleet: FleetJob, term: int, services: dict[str, str]) -> list[str]:
    """Ask services (role → address) for what changes them, as the leader of that term would; those that refuse it."""
    mutation = Mutation(fleet.run, term, f"late-{term}", deadline_s=20.0)
    policy, critic = PolicyClient(services["trainer"]), CriticClient(services["critic"])
    rollout = RolloutClient(services["rollout"])
    asked: dict[str, Awaitable[object]] = {
        "trainer": policy.save_checkpoint(str(fleet.folder / "late-actor"), mutation),
        "critic": critic.save_checkpoint(str(fleet.folder / "late-critic"), mutation),
        "rollout": rollout.abort(None, mutation),
    }
    try:
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    finally:
        for client in (policy, critic, rollout):
            await client.close()
    return [role for role, answer in zip(asked, answers, strict=True) if isinstance(answer, FencedError)]


def test_f8_an_asynchronous_run_with_a_critic_goes_on_under_other_leaders(
    job: ToyJob, etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups are under way when a leader is killed, and when the next one stands still and wakes up again. A rollout
    server that joins by hand meanwhile, the record and `argosy status` go along."""
    keys = (
        "trainer.save_freq=2", "trainer.total_training_steps=100000", "algorithm.adv_estimator=gae",
        "argosy.deterministic=false", "argosy.max_staleness=2", "trainer.max_actor_ckpt_to_keep=3",
        "data.max_response_length=24", "argosy.record.enable=true",
    )  # fmt: skip
    fleet = FleetJob(job, "f8-stream", etcd.endpoints, overrides=keys)
    joiner: Joiner | None = None
    try:
        fleet.serve("critic")
        begin(fleet, "b", "c", after_step=4)
        joiner = Joiner(fleet.folder, "rollout")
        killed_at, at = time.time(), fleet.steps()[-1]
        fleet.processes["a"].kill()
        second = name_of_leader(fleet, 2)
        fleet.until(lambda: len(fleet.lives()) == 2 and fleet.steps()[-1] > at, "steps of the second leader", second)
        went_on_s = time.time() - killed_at
        joined = joiner.wait("ready").member_id
        within(lambda: trained(fleet.folder, joined), "a trained sample of the newcomer")

        freeze(fleet.processes[second].pid)
        at = fleet.steps()[-1]
        [third] = {"b", "c"} - {second}
        fleet.until(lambda: len(fleet.lives()) == 3, "the third leads", third)
        fleet.processes[second].send_signal(signal.SIGCONT)
        code, shown = fleet.end(second)
        assert code == 1, shown
        assert any(words in shown for words in REFUSED), shown
        assert name_of_leader(fleet, 3) == third
        fleet.until(lambda: fleet.steps()[-1] > at, "steps of the third leader", third)
        status, members = shown_by(capsys, "status", fleet), shown_by(capsys, "members", fleet)["members"]
        assert (status["run_id"], status["term"], status["state"]) == (fleet.run, 3, "running")
        leads = leader(fleet)
        assert leads is not None
        assert leads.address in [one["address"] for one in members if one["role"] == "controller"]
        services = {one["role"]: one["address"] for one in members if one["state"] == "ready"}
        assert asyncio.run(act_as(fleet, 2, services)) == ["trainer", "critic", "rollout"]

        joiner.process.send_signal(signal.SIGTERM)
        assert joiner.end() == 0, joiner.text()
        at = fleet.steps()[-1]
        fleet.until(lambda: fleet.steps()[-1] >= at + 3, "steps without the newcomer", third)
        asyncio.run(stop(leads.address))
        code, shown = fleet.end(third)
        assert code == 0, shown
        assert [life["term"] for life in fleet.lives()] == [1, 2, 3]
        steps = fleet.steps()
        assert steps == list(range(1, steps[-1] + 1))
        assert check_ledger(fleet.folder).faults == []
        rows = trained(fleet.folder)
        assert len(rows) == len({row["sample_id"] for row in rows}) == 64 * len(steps), "none lost, none trained twice"
        record = Record(fleet.folder)
        assert record.steps == steps
        record.check_all(steps)
        with capsys.disabled():
            leads_s = fleet.lives()[1]["started_at"] - killed_at
            print(
                f"\nan asynchronous run was taken over {leads_s:.1f} s after a kill, and was beyond where it had been "
                f"after {went_on_s:.1f} s"
            )
    finally:
        if joiner is not None:
            joiner.kill()
        fleet.close()


@pytest.mark.soak
def test_a_trainer_that_is_killed_and_started_again_by_hand(fleet: FleetJob, unbroken: list[dict[str, Any]]) -> None:
    """The leader waits for it, and goes back to the last checkpoint by itself."""
    begin(fleet, after_step=3)
    fleet.processes["trainer-0"].kill()
    fleet.serve("trainer")
    code, shown = fleet.end("a")
    assert code == 0, shown
    first, second = fleet.lives()
    assert (first["term"], second["term"], second["lineage"]) == (1, 1, "l1")
    assert "trainer-0" in second["cause"]
    assert_unbroken(fleet, unbroken)


def test_f8_a_leader_that_is_cut_off_from_etcd_is_replaced_and_refused(
    fleet: FleetJob, unbroken: list[dict[str, Any]]
) -> None:
    """It reaches all services, and learns from them that its term is over."""
    with TcpProxy(fleet.endpoints[0]) as proxy:
        fleet.serve_all()
        fleet.control("a", f"argosy.membership.endpoints=[{proxy.endpoint}]")
        fleet.until(lambda: led_by(fleet, 1), "a leads", "a", *fleet.processes)
        fleet.control("b")
        fleet.until(lambda: "stands by: " in fleet.output("b"), "b stands by", "a", "b")
        fleet.until(lambda: max(fleet.steps(), default=0) >= 1, "steps are trained", "a", "b")
        proxy.cut()
        code, shown = fleet.end("a")
        assert code == 1, shown
        assert any(words in shown for words in REFUSED), shown
        code, shown = fleet.end("b")
        assert code == 0, shown
        assert [life["term"] for life in fleet.lives()] == [1, 2]
        assert_unbroken(fleet, unbroken)


async def stop(address: str) -> None:
    client = ControllerClient(address)
    try:
        await client.stop("enough seen")
    finally:
        await client.close()


def test_f6_training_goes_on_while_etcd_is_away(job: ToyJob, tmp_path: Path) -> None:
    """For longer than the lease, with saves in between; the leader is the same afterwards, and the standby still there:
    a stop that somebody asked for ends both."""
    with etcd_cluster(tmp_path, 1) as own:
        endless = (KEYS[0], "trainer.total_training_steps=100000")
        fleet = FleetJob(job, "f6-away", own.endpoints, ttl_s=2, overrides=endless)
        try:
            begin(fleet, "b", after_step=1)
            own.stop(signal.SIGKILL)
            log = next((fleet.folder / "logs").glob("controller-*.log"))
            fleet.until(lambda: "goes on with what it knows" in log.read_text(), "it can't renew", "a", "b")
            at = fleet.steps()[-1]
            fleet.until(lambda: fleet.steps()[-1] >= at + 3, "steps without etcd", "a", "b")
            assert "membership can't be told" in log.read_text(), "a checkpoint was saved meanwhile"
            own.start()
            at = fleet.steps()[-1]
            fleet.until(lambda: fleet.steps()[-1] >= at + 3, "steps with etcd", "a", "b")
            asyncio.run(stop(json.loads((fleet.folder / "endpoint.json").read_text())["address"]))
            assert fleet.end("a")[0] == 0, fleet.output("a")
            assert fleet.end("b")[0] == 0, fleet.output("b")
            last = fleet.steps()[-1]
            assert f"has stopped at step {last}" in fleet.output("b")
            assert [life["term"] for life in fleet.lives()] == [1]
            assert fleet.steps() == list(range(1, last + 1))
            assert check_ledger(fleet.folder).faults == []
        finally:
            fleet.close()
