"""Servers come and go by hand while a run of the tiny model trains: they join, drain, are killed and born again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from argosy.cli.main import main
from argosy.controller.ledger.entry import staleness_of
from chaos.test_run_ends import END_BOUND_S, ended, processes_of, start_and_wait, wait_until
from support.freezing import freeze
from support.joining import Joiner, members, trained, within
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

FAULTY = Path(__file__).parent.parent / "integration" / "launcher_programs" / "faulty_rollout.py"
LIVE = (
    "argosy.deterministic=false", "argosy.restart.limit=0", "argosy.membership.lease_ttl_s=4",
    "data.max_response_length=24", "argosy.export_hf=false", "trainer.save_freq=50",
)  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("chaos-membership"))


@contextmanager
def live(job: ToyJob, run: str, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A run that trains, and is ended with everything that joined it. Its ledger must balance."""
    process = start_and_wait(job, run, *LIVE, *overrides)
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            code, err = ended(process)
            assert code == 143, err
        for joined in processes_of(job.folder / run).values():
            if "serve" in joined.cmdline():  # those that others have started outlive the run
                joined.kill()
        wait_until(lambda: processes_of(job.folder / run) == {}, "all processes gone", END_BOUND_S)
        assert main(["ledger", str(job.folder / run), "--check"]) == 0
    finally:
        process.kill()
        for joined in processes_of(job.folder / run).values():
            joined.kill()


def goes_on(job: ToyJob, run: str, process: subprocess.Popen[str], steps: int = 3) -> None:
    before = len(job.metrics(run))
    wait_until(lambda: len(job.metrics(run)) >= before + steps or process.poll() is not None, "more steps")
    assert process.poll() is None, process.communicate()


@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_d11_server_joins_a_live_run_drains_is_born_again_and_dies(job: ToyJob, staleness: int) -> None:
    run = f"join-{staleness}"
    folder = job.folder / run
    with live(job, run, f"argosy.max_staleness={staleness}") as process:
        joiner = Joiner(folder, "rollout")
        seen = joiner.wait("ready")
        assert seen.member_id == "rollout-1", "the next free id"
        assert seen.version is not None
        first_token_s = joiner.first_token_s(seen.address)
        print(f"\nmax_staleness {staleness}: {first_token_s:.1f} s from its start to its first token")
        within(lambda: trained(folder, "rollout-1"), "a trained sample of the newcomer")

        joiner.process.send_signal(signal.SIGTERM)  # a spot machine's notice
        assert joiner.end() == 0, joiner.text()
        goes_on(job, run, process)
        assert [one.member_id for one in members(folder, "rollout")] == ["rollout-0"]

        again = Joiner(folder, "rollout", "--member", "rollout-1")
        born = again.wait("ready")
        assert born.incarnation != seen.incarnation
        within(lambda: trained(folder, "rollout-1", after=again.started), "a trained sample of its second life")

        again.kill()
        goes_on(job, run, process)
        within(lambda: len(members(folder, "rollout")) == 1, "its lease to end")
        goes_on(job, run, process, steps=2)
    rows = trained(folder)
    assert {row["member"] for row in rows} == {"rollout-0", "rollout-1"}
    assert max(age for row in rows if (age := staleness_of(row)) is not None) <= staleness, "none of old weights"
    last = job.metrics(run)[-1]
    assert last["rollout/joined_servers"] == 2
    assert last["rollout/drained_servers"] == 1
    assert last["rollout/lost_servers"] == 1


@pytest.mark.soak
@pytest.mark.parametrize(
    "overrides",
    [
        ("actor_rollout_ref.model.lora_rank=4",), ("argosy.weight_sync.transport=disk",),
        ("argosy.weight_sync.transport=collective",), ("argosy.weight_sync.transport=shared_memory",),
        ("argosy.weight_sync.delta=xor",),
    ],
    ids=lambda overrides: overrides[0].rpartition(".")[2],
)  # fmt: skip
def test_d11_a_server_joins_whatever_way_weights_take(job: ToyJob, overrides: tuple[str, ...]) -> None:
    run = "join-" + overrides[0].rpartition("=")[2]
    folder = job.folder / run
    with live(job, run, "argosy.max_staleness=1", *overrides) as process:
        joiner = Joiner(folder, "rollout")
        assert joiner.wait("ready").version is not None
        within(lambda: trained(folder, "rollout-1"), "a trained sample of the newcomer")
        synced = time.time()  # and it goes on with the others: full syncs, adapters and differences on top of its own
        goes_on(job, run, process)
        within(lambda: trained(folder, "rollout-1", after=synced), "a trained sample of later weights")
        joiner.kill()
    rows = trained(folder)
    assert max(age for row in rows if (age := staleness_of(row)) is not None) <= 1, "none of old weights"
    assert job.metrics(run)[-1].get("rollout/failed_catch_ups", 0) == 0


def test_f10_a_server_that_stands_still_or_is_frozen_is_out_of_use_until_it_moves(
    job: ToyJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """Health still answers for one whose engine stands still; a process that is stopped loses its lease."""
    run = "still"
    folder = job.folder / run
    with live(job, run, "argosy.max_staleness=1", "argosy.rollout.stall_timeout_s=1") as process:
        joiner = Joiner(folder, "rollout", "--member", "rollout-1", "--port", "0", program=FAULTY)
        try:
            joiner.wait("ready")
            within(lambda: trained(folder, "rollout-1"), "a trained sample of it")
            joiner.process.send_signal(signal.SIGUSR1)  # its engine stands still for 3 s
            joiner.wait("quarantined")
            within(lambda: (one := joiner.member()) and "stands still" in one.error, "the reason, for people who ask")
            capsys.readouterr()
            assert main(["members", "--run", str(folder), "--role", "rollout", "--json"]) == 0
            assert "rollout-1" in capsys.readouterr().out
            goes_on(job, run, process)
            joiner.wait("ready")
            moved = time.time()
            within(lambda: trained(folder, "rollout-1", after=moved), "a trained sample after it moved")

            freeze(joiner.process.pid)
            within(lambda: len(members(folder, "rollout")) == 1, "its lease to end")
            goes_on(job, run, process)
            thawed = time.time()
            joiner.process.send_signal(signal.SIGCONT)
            assert joiner.wait("ready").member_id == "rollout-1"
            within(lambda: trained(folder, "rollout-1", after=thawed), "a trained sample after it was thawed")
        finally:
            joiner.kill()
    rows = trained(folder)
    assert max(age for row in rows if (age := staleness_of(row)) is not None) <= 1, "none of old weights"


def test_killed_child_costs_no_sample_and_little_time(job: ToyJob) -> None:
    run = "killed"
    folder = job.folder / run
    long = ("data.max_response_length=200", "argosy.max_staleness=1", "argosy.pools={a: {count: 2}}")
    with live(job, run, *long, "argosy.rollout.stream_interval_tokens=4") as process:
        child = processes_of(folder)["rollout-a-1"]
        within(lambda: trained(folder, "rollout-a-1"), "a trained sample of both")
        killed = time.time()
        child.kill()
        goes_on(job, run, process)
        moved = [row for row in trained(folder, after=killed) if row["dispatch_count"] > 1]
        assert all(row["member"] == "rollout-a-0" for row in moved)
        if moved:
            took = sorted(row["dispatched_at"] - killed for row in moved)
            print(f"\n{len(moved)} samples: {took[0]:.2f} to {took[-1]:.2f} s from the kill to a new dispatch")


@pytest.mark.soak
def test_last_server_leaves_the_run_waits_for_one_to_join_and_not_for_ever(job: ToyJob) -> None:
    run = "last"
    folder = job.folder / run
    with live(job, run, "argosy.max_staleness=1", "argosy.startup_timeout_s=60") as process:
        first = Joiner(folder, "rollout")
        first.wait("ready")
        processes_of(folder)["rollout-0"].kill()
        goes_on(job, run, process)
        first.process.send_signal(signal.SIGTERM)
        assert first.end() == 0, first.text()
        second = Joiner(folder, "rollout")
        second.wait("ready")
        goes_on(job, run, process)
        second.kill()
        _, err = process.communicate(timeout=60 + END_BOUND_S)
        assert process.returncode == 1, err
        assert "no rollout server" in err


@pytest.mark.soak
def test_reference_server_joins_and_stands_in_for_one_that_dies(job: ToyJob) -> None:
    run = "references"
    folder = job.folder / run
    with live(job, run) as process:
        joiner = Joiner(folder, "reference")
        assert joiner.wait("ready").member_id == "reference-1"
        goes_on(job, run, process)
        processes_of(folder)["reference-0"].kill()
        goes_on(job, run, process)
        assert process.poll() is None


def test_reward_server_joins_and_leaves(job: ToyJob) -> None:
    run = "rewards"
    folder = job.folder / run
    with live(job, run) as process:
        joiner = Joiner(folder, "reward")
        assert joiner.wait("ready").member_id == "reward-1"
        within(lambda: max((row.get("reward_service/default/replicas", 1) for row in job.metrics(run)), default=1) == 2,
               "a step with two servers")  # fmt: skip
        joiner.process.send_signal(signal.SIGTERM)
        assert joiner.end() == 0, joiner.text()
        goes_on(job, run, process)
        assert all(row["reward/toy/failed"] == 0 for row in job.metrics(run))
