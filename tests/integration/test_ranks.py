"""A trainer of two ranks in a whole run: it learns as one process does, and ends with the rank that died."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("ranks")

STEPS = 8
TWO = ("trainer.n_gpus_per_node=2", "argosy.trainer.rank_timeout_s=60")


def test_two_ranks_learn_as_one_process_does(toy_job: ToyJob) -> None:
    """Equal to rounding while both are at the same weights: the first step, in loss, gradient and log-probs.

    Sums over two ranks are taken in another order, so weights differ by about 1e-6 after it, and a sampled token may
    be another one from then on: later steps are compared by what is learned.
    """
    steps = f"trainer.total_training_steps={STEPS}"
    for run, extra in (("two", TWO), ("one", ())):
        code, out, err = toy_job.run(run, steps, "trainer.val_before_train=false", *extra)
        assert code == 0, out + err
    one, two = toy_job.trained("one"), toy_job.trained("two")
    assert one[0].keys() == two[0].keys()
    for name, value in one[0].items():
        assert two[0][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    rewards = [[row["critic/score/mean"] for row in rows] for rows in (one, two)]
    for learned in rewards:
        assert max(learned[-2:]) > 2 * learned[0]
    assert rewards[1] == pytest.approx(rewards[0], abs=0.1)
    log = (toy_job.folder / "two" / "logs" / "trainer-0.log").read_text()
    assert (toy_job.folder / "two" / "hf" / "model.safetensors").stat().st_size > 0
    assert "Traceback" not in log


def test_a_checkpoint_of_two_ranks_is_resumed_by_one(toy_job: ToyJob) -> None:
    more = f"trainer.total_training_steps={STEPS + 1}"
    code, out, err = toy_job.run("two", more, "trainer.val_before_train=false", "argosy.placement=inprocess")
    assert code == 0, out + err
    assert f"resumed from {toy_job.folder}/two/global_step_{STEPS}" in out.replace("\n", "")
    assert [row["step"] for row in toy_job.trained("two")] == list(range(1, STEPS + 2))


def rank_of(launcher: int, timeout_s: float = 90) -> int:
    """Process id of the trainer's rank 1."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for process in psutil.Process(launcher).children(recursive=True):
            try:
                if "argosy.trainer.ranks" in process.cmdline():
                    return process.pid
            except psutil.Error:
                continue
        time.sleep(0.2)
    raise AssertionError("no second rank was started")


def test_e12_kill_9_of_rank_1_ends_the_run_with_its_name(toy_job: ToyJob) -> None:
    overrides = ("trainer.total_training_steps=500", "trainer.val_before_train=false", "argosy.restart.limit=0")
    process = toy_job.start("bereft", *overrides, *TWO)
    try:
        pid = rank_of(process.pid)
        wait_for_a_step(toy_job, "bereft")
        family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    told = (out + err).replace("\n", " ")
    assert "trainer-0" in told
    assert "trainer rank 1 failed in" in told
    assert "killed by SIGKILL" in told
    assert not [pid for pid in family if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def wait_for_a_step(toy_job: ToyJob, run: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if toy_job.metrics(run):
            return
        time.sleep(0.1)
    raise AssertionError(f"{run} did not finish a step within {timeout_s} s: {Path(toy_job.folder / run)}")
