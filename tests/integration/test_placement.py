"""Rollout pools with real processes: unlike servers train one policy, and the death of one is not the run's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment
from argosy.membership import server
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("placement")

STEPS = 6
SHORT = (
    "argosy.deterministic=false", "actor_rollout_ref.actor.use_kl_loss=False", "trainer.val_before_train=False",
    "trainer.logger=[file]", "argosy.export_hf=false", "argosy.trainer.threads=1", "argosy.rollout.threads=1",
)  # fmt: skip
POOLS = "argosy.pools={exact: {}, coarse: {dtype: bfloat16, threads: 2, service: {slot_count: 16}}}"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running etcd that isn't the launcher's."""
    folder = tmp_path_factory.mktemp("etcd")
    name, ports = f"placement-{os.getpid()}", server.free_ports()
    argv = server.command(server.find_binary(None), name=name, data_dir=folder / "data", ports=ports)
    with (folder / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        while not server.is_ours(ports.endpoint, name):
            assert process.poll() is None
            time.sleep(0.05)
        yield ports.endpoint
        process.terminate()


def kill_member(process: subprocess.Popen[str], member: str) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        if member in child.cmdline():
            child.send_signal(signal.SIGKILL)
            return
    raise AssertionError(f"no process of {member}")


def wait_for_step(job: ToyJob, run: str, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not any(row["step"] >= step for row in job.metrics(run)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_d6_d11_pools_of_unlike_servers_train_on_when_one_is_killed(toy_job: ToyJob) -> None:
    stays_dead = "argosy.restart.limit=0"
    process = toy_job.start("pools", *SHORT, POOLS, stays_dead, f"trainer.total_training_steps={STEPS}")
    wait_for_step(toy_job, "pools", 2, process)
    kill_member(process, "rollout-coarse-0")
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, out + err
    rows = toy_job.metrics("pools")
    servers = [(row["rollout/pools/exact/servers"], row["rollout/pools/coarse/servers"]) for row in rows]
    assert servers[:2] == [(1.0, 1.0)] * 2
    assert servers[-1] == (1.0, 0.0)
    for row in rows:
        tokens = [row[f"rollout/pools/{pool}/generated_tokens"] for pool in ("exact", "coarse")]
        assert sum(tokens) == row["rollout/generated_tokens"]
        assert sum(row[f"rollout/pools/{pool}/samples"] for pool in ("exact", "coarse")) >= 64
    assert all(row["rollout/pools/exact/generated_tokens"] > 0 for row in rows)
    assert sum(row["rollout/pools/coarse/generated_tokens"] for row in rows) > 0
    scores = [row["critic/score/mean"] for row in rows]
    assert max(scores[-2:]) > 2 * scores[0], "it learns all the same"
    for step in range(1, STEPS + 1):
        segment = read_segment(toy_job.folder / "pools" / "ledger", step)
        assert Counter(row["state"] for row in segment) == {"trained": 64}
    log = (toy_job.folder / "pools" / "logs" / "controller-0.log").read_text()
    assert "the run goes on without rollout-coarse-0" in log


def test_colocated_servers_take_turns_and_learn_the_same(toy_job: ToyJob) -> None:
    """Sleep drops the weights (level 2) and the cache; what is trained is bit for bit what a split placement trains."""
    steps = ("trainer.total_training_steps=3", "argosy.deterministic=true")
    for run, more in (("split", ()), ("colocated", ("argosy.colocated=true", "argosy.sleep_level=2"))):
        words = toy_job.command(run, *SHORT, *steps, *more, "argosy.placement=inprocess")
        assert main(words[words.index("train") :]) == 0
    assert toy_job.trained("colocated") == toy_job.trained("split")


def test_a_pool_that_others_start_is_waited_for_and_trained_with(toy_job: ToyJob, etcd: str) -> None:
    """`argosy serve rollout --pool far` by hand, as on another machine, beside a pool that the launcher starts."""
    shared = (
        f"argosy.membership.endpoints=[{etcd}]", "argosy.membership.prefix=/shared", "argosy.deterministic=false",
        "argosy.pools={near: {}, far: {remote: true, threads: 1}}",
    )  # fmt: skip
    words = toy_job.command("remote", *SHORT, *shared)
    keys = words[words.index("train") + 1 :]
    command = [*words[: words.index("train")], "serve", "rollout", "--pool", "far", "--member", "rollout-far-0"]
    log = toy_job.folder / "far.log"
    with log.open("wb") as output, subprocess.Popen([*command, *keys], stdout=output, stderr=output) as member:
        try:
            code, out, err = toy_job.run("remote", *SHORT, *shared, "trainer.total_training_steps=3")
            assert code == 0, out + err
            assert member.poll() is None, "a server that others started is theirs to end"
            member.terminate()
            assert member.wait(20) == 0, log.read_text()
        finally:
            member.kill()
    for row in toy_job.metrics("remote"):
        assert row["rollout/pools/far/generated_tokens"] > 0
        assert row["rollout/pools/near/generated_tokens"] > 0
