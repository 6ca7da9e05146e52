"""`argosy scale` on a run that is under way: servers come, take work, and leave, and training goes on."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment, steps_in
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("scale")

GUARD_S = 240.0


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"not within {GUARD_S:g} s: {what}"
        time.sleep(0.05)


def servers_of(job: ToyJob, run: str) -> list[set[str]]:
    """Who answered in each step so far."""
    folder = job.folder / run / "ledger"
    return [{row["member"] for row in read_segment(folder, step)} for step in steps_in(folder)]


def test_servers_come_and_go_while_it_trains(toy_job: ToyJob, capsys: pytest.CaptureFixture[str]) -> None:
    endless = ("trainer.total_training_steps=100000", "trainer.val_before_train=false", "argosy.deterministic=false")
    process = toy_job.start("scaled", *endless, "argosy.export_hf=false")
    run = ["--run", str(toy_job.folder / "scaled")]
    try:
        wait_until(process, lambda: len(toy_job.metrics("scaled")) >= 1, "the first step")
        assert main(["scale", "rollout=2", "reward=2", "--json", *run]) == 0
        changes = json.loads(capsys.readouterr().out)["changes"]
        assert [change["started"] for change in changes] == [["rollout-1"], ["reward-1"]]
        wait_until(process, lambda: "rollout-1" in servers_of(toy_job, "scaled")[-1], "work of the new server")
        assert main(["scale", "rollout=1", *run]) == 0
        assert "rollout: 2 → 1; draining rollout-1" in capsys.readouterr().out
        wait_until(process, lambda: servers_of(toy_job, "scaled")[-1] == {"rollout-0"}, "steps without it")
        assert main(["scale", "rollout=2", "trainer=2", *run]) == 2
        assert "'trainer' can't be scaled" in capsys.readouterr().err
        process.terminate()
        process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    steps = [row["step"] for row in toy_job.metrics("scaled")]
    assert steps == list(range(1, len(steps) + 1)), "no step was done twice, no life began anew"
    assert main(["ledger", str(toy_job.folder / "scaled"), "--check"]) == 0
    log = (toy_job.folder / "scaled" / "logs" / "rollout-1.log").read_text()
    assert "finishing what runs" in log
    assert "Traceback" not in log
    assert main(["scale", "rollout=2", *run]) == 1
    assert "no run is under way" in capsys.readouterr().err
