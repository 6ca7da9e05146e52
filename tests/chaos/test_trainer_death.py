"""A service dies in the middle of a run: it is started again, and the run goes back to its last checkpoint by itself.

Whatever dies, a synchronous run with argosy.deterministic=true ends as the unbroken one, bit for bit, in one start of
its command. The other servers stay: their processes are the same before and after.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment, steps_in
from argosy.controller.ledger.lives import read_lives
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("trainer-death")]

MEMBERS = ("trainer-0", "critic-0", "reference-0", "reward-0", "rollout-0")
STEPS = 4 * len(MEMBERS) + 2
COMMON = (
    "algorithm.adv_estimator=gae", f"trainer.total_training_steps={STEPS}", "trainer.val_before_train=False",
    "trainer.save_freq=2", "trainer.max_actor_ckpt_to_keep=2", "trainer.logger=[console,file]",
    "argosy.export_hf=False", "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.shuffle=True",
    "actor_rollout_ref.rollout.n=2",
)  # fmt: skip
GUARD_S = 240.0
"""Nothing takes so long, on a machine however loaded."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("trainer-death"))


@pytest.fixture(scope="module")
def unbroken(job: ToyJob) -> list[dict[str, Any]]:
    words = job.command("unbroken", *COMMON, "argosy.placement=inprocess")
    assert main(words[words.index("train") :]) == 0
    return job.trained("unbroken")


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"not within {GUARD_S:g} s: {what}"
        time.sleep(0.01)


def service(process: subprocess.Popen[str], member: str) -> psutil.Process:
    """The process of a member of a running job."""
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            words = child.cmdline()
            if "--member" in words and words[words.index("--member") + 1] == member:
                return child
        except psutil.Error:
            continue
    raise AssertionError(f"{process.pid} runs no {member}")


def own_etcd(process: subprocess.Popen[str]) -> psutil.Process:
    """The one that a running job has started."""
    return next(child for child in psutil.Process(process.pid).children() if child.name() == "etcd")


def checkpoints(job: ToyJob, run: str) -> int:
    """The newest one's step; 0 without any."""
    pointer = job.folder / run / "latest_checkpointed_iteration.txt"
    return int(pointer.read_text()) if pointer.exists() else 0


def lives_of(job: ToyJob, run: str) -> list[tuple[str, str]]:
    return [(life.lineage, life.cause) for life in read_lives(job.folder / run / "ledger")]


def wait_for_checkpoint(process: subprocess.Popen[str], job: ToyJob, run: str, step: int) -> None:
    wait_until(process, lambda: checkpoints(job, run) >= step, f"the checkpoint of step {step}")


def wait_for_life(process: subprocess.Popen[str], job: ToyJob, run: str, number: int) -> None:
    wait_until(process, lambda: len(lives_of(job, run)) == number, f"the run's life {number}")


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, out + err
    return out


def test_whichever_service_dies_the_run_is_the_unbroken_one(job: ToyJob, unbroken: list[dict[str, Any]]) -> None:
    process = job.start("deaths", *COMMON)
    try:
        for number, member in enumerate(MEMBERS):
            wait_for_checkpoint(process, job, "deaths", 4 * number + 2)
            if number == 1:  # needed most when somebody comes, as the critic's next life does
                etcd = own_etcd(process)
                etcd.kill()
            victim = service(process, member)
            others = {name: service(process, name).pid for name in MEMBERS if name != member}
            victim.kill()
            wait_for_life(process, job, "deaths", number + 2)
            assert {name: service(process, name).pid for name in others} == others, "nobody else was touched"
        assert own_etcd(process).pid != etcd.pid, "it was started again"
        out = finish(process)
    finally:
        process.kill()
    assert job.trained("deaths") == unbroken
    steps = [json.loads(line)["step"] for line in (job.folder / "deaths" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1)), "each step once, in its order"
    causes = [f"{member} died: killed by SIGKILL" for member in MEMBERS]
    assert [lineage for lineage, _ in lives_of(job, "deaths")] == ["l0", "l1", "l2", "l3", "l4", "l5"]
    for (_, cause), wanted in zip(lives_of(job, "deaths")[1:], causes, strict=True):
        assert cause.startswith(wanted)
    assert all(wanted in out.replace("\n", " ") for wanted in causes)
    assert main(["ledger", str(job.folder / "deaths"), "--check"]) == 0


@pytest.mark.soak
def test_before_the_first_checkpoint_it_begins_anew(job: ToyJob, unbroken: list[dict[str, Any]]) -> None:
    """There is nothing to load, so the trainers that live are started again too."""
    overrides = (*COMMON, "trainer.save_freq=-1", "trainer.total_training_steps=3")
    process = job.start("early", *overrides, "actor_rollout_ref.actor.optim.total_training_steps=" + str(STEPS))
    try:
        wait_until(process, lambda: len(job.metrics("early")) >= 1, "the first step")
        before = {name: service(process, name).pid for name in MEMBERS}
        service(process, "reward-0").kill()
        wait_for_life(process, job, "early", 2)
        after = {name: service(process, name).pid for name in MEMBERS}
        assert {name for name in MEMBERS if after[name] != before[name]} == {"reward-0", "trainer-0", "critic-0"}
        finish(process)
    finally:
        process.kill()
    assert [row["step"] for row in job.metrics("early")] == [1, 2, 3]
    assert main(["ledger", str(job.folder / "early"), "--check"]) == 0
    for step, row in enumerate(job.trained("early")):
        for name in ("critic/score/mean", "actor/grad_norm", "response_length/mean"):
            assert row[name] == unbroken[step][name], (step, name)


def test_an_asynchronous_run_loses_and_repeats_nothing(job: ToyJob) -> None:
    overrides = (*COMMON, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8")
    stream = ("argosy.max_staleness=2", "argosy.deterministic=false", "trainer.total_training_steps=10")
    process = job.start("stream", *overrides, *stream)
    try:
        wait_for_checkpoint(process, job, "stream", 2)
        rollout = service(process, "rollout-0").pid
        service(process, "trainer-0").kill()
        wait_for_life(process, job, "stream", 2)
        assert service(process, "rollout-0").pid == rollout
        finish(process)
    finally:
        process.kill()
    assert main(["ledger", str(job.folder / "stream"), "--check"]) == 0
    folder = job.folder / "stream" / "ledger"
    rows = [row for step in steps_in(folder) for row in read_segment(folder, step) if row["state"] == "trained"]
    trained = [row["sample_id"] for row in rows]
    assert len(trained) == len(set(trained)) == 64 * 10
    assert [row["step"] for row in job.metrics("stream")] == list(range(1, 11))


@pytest.mark.soak
def test_a_rank_dies_and_the_trainer_comes_back_with_fewer(job: ToyJob) -> None:
    overrides = (*COMMON, "algorithm.adv_estimator=grpo", "argosy.deterministic=false", "trainer.n_gpus_per_node=2")
    process = job.start("ranks", *overrides, "trainer.total_training_steps=5", "argosy.restart.ranks=1")
    try:
        wait_for_checkpoint(process, job, "ranks", 2)
        [rank] = [one for one in service(process, "trainer-0").children() if "argosy.trainer.ranks" in one.cmdline()]
        rank.kill()
        wait_for_life(process, job, "ranks", 2)
        assert not service(process, "trainer-0").children(), "one rank needs no others"
        finish(process)
    finally:
        process.kill()
    assert [row["step"] for row in job.metrics("ranks")] == [1, 2, 3, 4, 5]
    assert main(["ledger", str(job.folder / "ranks"), "--check"]) == 0


@pytest.mark.soak
def test_with_the_newer_weights_of_a_rollout_server_no_step_is_done_again(job: ToyJob) -> None:
    overrides = (
        *COMMON,
        "algorithm.adv_estimator=grpo",
        "argosy.deterministic=false",
        "argosy.restart.weights=rollout",
    )
    process = job.start("newer", *overrides, "trainer.save_freq=5", "trainer.total_training_steps=9")
    try:
        wait_until(process, lambda: len(job.metrics("newer")) >= 7, "step 7")
        service(process, "trainer-0").kill()
        wait_for_life(process, job, "newer", 2)
        finish(process)
    finally:
        process.kill()
    [_, life] = read_lives(job.folder / "newer" / "ledger")
    assert life.from_step >= 7
    assert f"its weights of step {life.from_step} come from a rollout server, its optimizer of 5" in life.cause
    assert not (job.folder / "newer" / "ledger" / "abandoned").exists(), "nothing was given up"
    assert [row["step"] for row in job.metrics("newer")] == list(range(1, 10))
    assert main(["ledger", str(job.folder / "newer"), "--check"]) == 0


def test_a_trainer_that_dies_again_at_once_ends_the_run_with_the_first_cause(job: ToyJob, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(job.folder / "model", model)
    overrides = (*COMMON, "algorithm.adv_estimator=grpo", f"actor_rollout_ref.model.path={model}")
    process = job.start("again", *overrides, "trainer.total_training_steps=100000", "argosy.restart.limit=1")
    try:
        wait_until(process, lambda: len(job.metrics("again")) >= 1, "the first step")
        os.remove(model / "model.safetensors")
        service(process, "trainer-0").kill()
        out, err = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    assert process.returncode == 1, out + err
    told = (out + err).replace("\n", " ")
    assert "trainer-0 died: killed by SIGKILL" in told
    assert "It was started again once, and died again; the last time: exit code 2" in told or "exit code 1" in told
