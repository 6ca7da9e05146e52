"""Killed with SIGKILL at random points, started again with the same command: case C13 on whole runs.

A synchronous run with argosy.deterministic=true ends as the unbroken one, bit for bit. An asynchronous one loses and
repeats nothing: `argosy ledger --check` over what survives, and each sample trained once. Either in one process, or as
a fleet of which a kill meets the controller, the trainer, the rollout or the reward server. The points are drawn from
a seed: while it starts, or some steps later and moved over all of a step by a random delay. `ARGOSY_KILLS` sets how
many there are (`make kills`: twenty).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment, steps_in
from support.toy import ToyJob, make_toy_job

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("kills")]

KILLS = int(os.environ.get("ARGOSY_KILLS", "1"))
STEPS = 4 * KILLS + 10
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
DEATHS_END_IT = "argosy.restart.limit=0"
"""Else the launcher starts a service again, and the run needn't be."""
MEMBERS = ("trainer-0", "rollout-0", "reward-letters-0", "argosy")
"""Whom a kill may meet; "argosy" is the command itself, with the controller."""
START_S = 6.0
"""A start takes about as long: a kill "while it starts" comes within this."""


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


@dataclass
class Broken:
    """A run that was killed again and again until it was done."""

    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """By whom they met; one that came when the run was done already isn't counted."""
    duration_s: float = 0.0

    def __str__(self) -> str:
        met = ", ".join(f"{member} {count}" for member, count in sorted(self.kills.items()))
        return f"{self.kills.total()} kills ({met}), {self.starts} starts, {self.duration_s:.0f} s"


@dataclass(frozen=True)
class Point:
    """When a kill comes."""

    rows: int
    """Steps that are logged before it, in this start; 0: while it starts."""
    delay_s: float
    member: str


def points(seed: int, members: tuple[str, ...]) -> Iterator[Point]:
    """Each member equally often, in a random order; one in five kills comes while the run starts."""
    source = random.Random(seed)
    while True:
        for member in source.sample(members, len(members)):
            if source.random() < 0.2:
                yield Point(0, source.uniform(0, START_S), member)
            else:
                yield Point(source.randint(1, 3), source.uniform(0, 0.5), member)


def kill_at(point: Point, process: subprocess.Popen[str], job: ToyJob, run: str) -> bool:
    """SIGKILL to a member when it is time; False if the run was done before, or the member wasn't there yet."""
    metrics = job.folder / run / "metrics.jsonl"
    deadline = time.monotonic() + 240
    fewest = lines_in(metrics)  # a start takes away the steps that it gives up
    while (now := lines_in(metrics)) < fewest + point.rows:
        fewest = min(fewest, now)
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "no step within four minutes"
        time.sleep(0.002)
    time.sleep(point.delay_s)
    if process.poll() is not None:
        return False
    if point.member == "argosy":
        process.kill()
        return True
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if point.member in child.cmdline():
                child.kill()
                return True
        except psutil.Error:
            continue
    process.kill()  # it is too early for that one: then whoever would start it
    return True


def run_with_kills(job: ToyJob, run: str, overrides: tuple[str, ...], seed: int, members: tuple[str, ...]) -> Broken:
    """Starts, until the run is done; each end by a kill is an error that names whom it met (case H8)."""
    broken, began = Broken(), time.monotonic()
    for point, _ in zip(points(seed, members), range(KILLS), strict=False):
        process = job.start(run, *overrides)
        broken.starts += 1
        try:
            met = kill_at(point, process, job, run)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
        if process.returncode == 0:
            break
        assert met, err
        broken.kills[point.member if process.returncode > 0 else "argosy"] += 1
        assert process.returncode < 0 or f"{point.member} died: killed by SIGKILL" in err, err
    else:
        code, out, err = job.run(run, *overrides, timeout_s=280)
        broken.starts += 1
        assert code == 0, out + err
    broken.duration_s = time.monotonic() - began
    return broken


def steps_logged(job: ToyJob, run: str) -> list[int]:
    lines = (job.folder / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def trained_samples(job: ToyJob, run: str) -> list[str]:
    folder = job.folder / run / "ledger"
    rows = [row for step in steps_in(folder) for row in read_segment(folder, step)]
    return [row["sample_id"] for row in rows if row["state"] == "trained"]


def tell(capsys: pytest.CaptureFixture[str], run: str, broken: Broken) -> None:
    """On the screen, where many kills are wanted."""
    assert broken.kills.total() >= max(1, KILLS // 2)
    if KILLS > 1:
        with capsys.disabled():
            print(f"\n{run}: {STEPS} steps, {broken}")


def is_the_unbroken_run(job: ToyJob, run: str, unbroken: list[dict[str, Any]]) -> None:
    assert job.trained(run) == unbroken
    assert steps_logged(job, run) == list(range(1, STEPS + 1)), "each step once, in its order"
    assert main(["ledger", str(job.folder / run), "--check"]) == 0
    digests = [json.loads((job.folder / name / "report.json").read_text())["version"] for name in (run, "unbroken")]
    assert len({digest.split("#")[1] for digest in digests}) == 1, "the same weights"


def lost_and_repeated_nothing(job: ToyJob, run: str) -> None:
    assert main(["ledger", str(job.folder / run), "--check"]) == 0
    assert steps_logged(job, run) == list(range(1, STEPS + 1))
    trained = trained_samples(job, run)
    assert len(trained) == len(set(trained)) == 64 * STEPS
    assert max(row["staleness/max"] for row in job.metrics(run)) <= 2


Capture = pytest.CaptureFixture[str]


def test_c13_killed_at_random_points_it_is_the_unbroken_run(
    job: ToyJob, unbroken: list[dict[str, Any]], capsys: Capture
) -> None:
    tell(capsys, "broken", run_with_kills(job, "broken", overrides_of(job, IN_PROCESS), 7, ("argosy",)))
    is_the_unbroken_run(job, "broken", unbroken)


def test_c13_whichever_process_is_killed(job: ToyJob, unbroken: list[dict[str, Any]], capsys: Capture) -> None:
    tell(capsys, "members", run_with_kills(job, "members", overrides_of(job, DEATHS_END_IT), 14, MEMBERS))
    is_the_unbroken_run(job, "members", unbroken)


ASYNCHRONOUS = (
    "argosy.max_staleness=2", "argosy.deterministic=false", "argosy.weight_sync.while_generating=abort",
)  # fmt: skip


@pytest.mark.parametrize(("run", "place", "seed", "members"), [
    ("stream", (IN_PROCESS,), 13, ("argosy",)), ("stream-members", (DEATHS_END_IT,), 15, MEMBERS),
])  # fmt: skip
def test_c13_an_asynchronous_run_loses_and_repeats_nothing(
    job: ToyJob, capsys: Capture, run: str, place: tuple[str, ...], seed: int, members: tuple[str, ...]
) -> None:
    tell(capsys, run, run_with_kills(job, run, overrides_of(job, *place, *ASYNCHRONOUS), seed, members))
    lost_and_repeated_nothing(job, run)
