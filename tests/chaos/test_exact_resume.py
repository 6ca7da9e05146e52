"""Killed with SIGKILL at random points, started again with the same command: case C13 on whole runs.

A synchronous run with argosy.deterministic=true ends as the unbroken one, bit for bit. An asynchronous one loses and
repeats nothing: `argosy ledger --check` over what survives. The points are drawn from a seed, and moved over all of a
step by a random delay; `ARGOSY_KILLS` sets how many there are (`make kills`: twenty).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment, steps_in
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("kills")]

KILLS = int(os.environ.get("ARGOSY_KILLS", "1"))
STEPS = 8 * KILLS + 6
COMMON = (
    f"trainer.total_training_steps={STEPS}", "trainer.val_before_train=False", "trainer.max_actor_ckpt_to_keep=2",
    "trainer.save_freq=2", "trainer.logger=[console,file]",
    # Everything that a run carries from step to step: running figures of rewards, a coefficient, a schedule, shuffles.
    "custom_reward_function.path=null", "algorithm.use_kl_in_reward=True", "actor_rollout_ref.actor.use_kl_loss=False",
    "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=200", "algorithm.kl_ctrl.kl_coef=0.01",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine", "actor_rollout_ref.actor.optim.lr_warmup_steps=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.shuffle=True",
)  # fmt: skip
IN_PROCESS = "argosy.placement=inprocess"
MEMBERS = ("trainer-0", "rollout-0", "reward-letters-0", "argosy")
"""Whom a kill meets, in turn; "argosy" is the command itself, with the controller."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    made = make_toy_job(tmp_path_factory.mktemp("kills"))
    function = {"path": str(made.folder / "reward.py"), "name": "compute_score"}
    service = {"data_sources": ["*"], "normalize": True, "custom_reward_function": function}
    text = json.dumps({"argosy": {"reward": {"services": {"letters": service}}}})
    (made.folder / "rewards.yaml").write_text(text)
    return made


def overrides_of(job: ToyJob, *more: str) -> tuple[str, ...]:
    return ("--config", f"{job.folder}/rewards.yaml", *COMMON, *more)


@pytest.fixture(scope="module")
def unbroken(job: ToyJob) -> list[dict[str, Any]]:
    """What each step of the reference trained on and gave."""
    words = job.command("unbroken", *overrides_of(job, IN_PROCESS))
    assert main(words[words.index("train") :]) == 0
    return job.trained("unbroken")


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_when(process: subprocess.Popen[str], job: ToyJob, run: str, rows: int, delay_s: float, member: str) -> bool:
    """SIGKILL to a member once `rows` more steps are logged, and a moment later; False if the run was done before."""
    metrics = job.folder / run / "metrics.jsonl"
    deadline = time.monotonic() + 240
    fewest = lines_in(metrics)  # a start takes away the steps that it gives up
    while (now := lines_in(metrics)) < fewest + rows:
        fewest = min(fewest, now)
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "no step within four minutes"
        time.sleep(0.002)
    time.sleep(delay_s)
    if member == "argosy":
        process.kill()
        return True
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if member in child.cmdline():
                child.kill()
                return True
        except psutil.Error:
            continue
    return process.poll() is None


def run_with_kills(job: ToyJob, run: str, overrides: tuple[str, ...], members: Iterator[str], seed: int) -> int:
    """Starts, until the run is done; returns how many were killed."""
    source = random.Random(seed)
    killed = 0
    for _ in range(KILLS):
        process = job.start(run, *overrides)
        try:
            met = kill_when(process, job, run, source.randint(1, 3), source.uniform(0, 0.3), next(members))
            process.communicate(timeout=120)
        finally:
            process.kill()
        killed += met and process.returncode != 0
        if process.returncode == 0:
            return killed
    code, out, err = job.run(run, *overrides, timeout_s=280)
    assert code == 0, out + err
    return killed


def steps_logged(job: ToyJob, run: str) -> list[int]:
    lines = (job.folder / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def trained_samples(job: ToyJob, run: str) -> list[str]:
    folder = job.folder / run / "ledger"
    rows = [row for step in steps_in(folder) for row in read_segment(folder, step)]
    return [row["sample_id"] for row in rows if row["state"] == "trained"]


def always(member: str) -> Iterator[str]:
    while True:
        yield member


def in_turn() -> Iterator[str]:
    while True:
        yield from MEMBERS


def test_c13_killed_at_random_points_it_is_the_unbroken_run(job: ToyJob, unbroken: list[dict[str, Any]]) -> None:
    assert run_with_kills(job, "broken", overrides_of(job, IN_PROCESS), always("argosy"), seed=7) >= max(1, KILLS // 2)
    assert job.trained("broken") == unbroken
    assert steps_logged(job, "broken") == list(range(1, STEPS + 1)), "each step once, in its order"
    assert main(["ledger", str(job.folder / "broken"), "--check"]) == 0
    digests = [json.loads((job.folder / run / "report.json").read_text())["version"] for run in ("broken", "unbroken")]
    assert len({digest.split("#")[1] for digest in digests}) == 1, "the same weights"


def test_c13_whichever_process_is_killed(job: ToyJob, unbroken: list[dict[str, Any]]) -> None:
    final = overrides_of(job, "argosy.restart.limit=0")
    assert run_with_kills(job, "members", final, in_turn(), seed=11) >= max(1, KILLS // 2)
    assert job.trained("members") == unbroken
    assert steps_logged(job, "members") == list(range(1, STEPS + 1))
    assert main(["ledger", str(job.folder / "members"), "--check"]) == 0


def test_c13_an_asynchronous_run_loses_and_repeats_nothing(job: ToyJob) -> None:
    stream = overrides_of(job, IN_PROCESS, "argosy.max_staleness=2", "argosy.deterministic=false")
    assert run_with_kills(job, "stream", stream, always("argosy"), seed=13) >= max(1, KILLS // 2)
    assert main(["ledger", str(job.folder / "stream"), "--check"]) == 0
    assert steps_logged(job, "stream") == list(range(1, STEPS + 1))
    trained = trained_samples(job, "stream")
    assert len(trained) == len(set(trained)) == 64 * STEPS
