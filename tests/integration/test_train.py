"""The main job on a tiny model, through five real processes and a real etcd; and the same in one process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("train")

STEPS = 14


@pytest.fixture(scope="module")
def local_run(toy_job: ToyJob) -> tuple[Path, str]:
    """One finished run through five processes: its folder, and what it printed."""
    code, out, err = toy_job.run("local", f"trainer.total_training_steps={STEPS}", f"trainer.test_freq={STEPS}")
    assert code == 0, out + err
    return toy_job.folder / "local", out


@pytest.fixture(scope="module")
def unbroken(toy_job: ToyJob) -> list[dict[str, Any]]:
    """The same job in one process."""
    code, out, err = toy_job.run(
        "unbroken", "argosy.placement=inprocess", f"trainer.total_training_steps={STEPS}", f"trainer.test_freq={STEPS}"
    )
    assert code == 0, out + err
    return toy_job.trained("unbroken")


def test_learns_through_five_processes(toy_job: ToyJob, local_run: tuple[Path, str]) -> None:
    rewards = [row["critic/score/mean"] for row in toy_job.metrics("local")]
    assert len(rewards) == STEPS
    assert rewards[0] < 0.15
    assert max(rewards[-3:]) > 4 * rewards[0]
    folder, out = local_run
    members = {path.stem for path in (folder / "logs").glob("*.log")}
    assert members >= {"controller-0", "rollout-0", "reward-0", "reference-0", "trainer-0", "etcd"}
    assert "held-out accuracy before" in out
    assert "held-out accuracy after" in out


def test_one_process_gives_the_same_numbers(
    toy_job: ToyJob, local_run: tuple[Path, str], unbroken: list[dict[str, Any]]
) -> None:
    assert toy_job.trained("local") == unbroken
    reports = [json.loads((toy_job.folder / run / "report.json").read_text()) for run in ("local", "unbroken")]
    assert reports[0]["version"] == reports[1]["version"], "equal digests are equal weights, bit for bit"
    assert reports[0]["after"] == reports[1]["after"]


def test_what_a_run_leaves_is_usable(local_run: tuple[Path, str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = local_run
    model = AutoModelForCausalLM.from_pretrained(folder / "hf")
    tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "say more 1"}], tokenize=False)
    assert "say more 1" in text
    assert model.config.tie_word_embeddings
    assert (folder / "reward_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert (folder / f"global_step_{STEPS}" / "manifest.json").exists()
    assert (folder / "config.yaml").exists()


def test_every_sample_is_accounted_for(local_run: tuple[Path, str]) -> None:
    from argosy.controller.ledger import read_segment

    folder, _ = local_run
    seen = set()
    for step in range(1, STEPS + 1):
        rows = read_segment(folder / "ledger", step)
        assert len(rows) == 64
        assert {row["state"] for row in rows} == {"trained"}
        assert {row["trained_step"] for row in rows} == {step}
        seen |= {row["sample_id"] for row in rows}
    assert len(seen) == 64 * STEPS


def test_one_trace_per_step_across_processes(local_run: tuple[Path, str]) -> None:
    folder, _ = local_run
    services: dict[str, set[str]] = defaultdict(set)
    steps: dict[int, str] = {}
    for path in (folder / "traces").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            span = json.loads(line)
            services[span["trace_id"]].add(path.stem)
            if span["name"] == "step" and path.stem == "controller-0":
                steps[span["attributes"]["argosy.step"]] = span["trace_id"]
    assert len(set(steps.values())) == STEPS
    everyone = {"controller-0", "rollout-0", "reward-0", "reference-0", "trainer-0"}
    assert [step for step, trace in steps.items() if not services[trace] >= everyone] == []


def wait_for_step(toy_job: ToyJob, run: str, step: int, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if any(row["step"] >= step for row in toy_job.metrics(run)):
            return
        time.sleep(0.1)
    raise AssertionError(f"{run} did not reach step {step} within {timeout_s} s")


def test_e5_c13_resume_after_a_kill_reproduces_the_unbroken_run(
    toy_job: ToyJob, unbroken: list[dict[str, Any]]
) -> None:
    """kill -9 of everything between two checkpoints; the same command again; equal bit for bit."""
    overrides = (f"trainer.total_training_steps={STEPS}", f"trainer.test_freq={STEPS}", "trainer.save_freq=3")
    process = toy_job.start("killed", *overrides)
    wait_for_step(toy_job, "killed", 8)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    code, out, err = toy_job.run("killed", *overrides)
    assert code == 0, out + err
    assert "resumed from" in out
    assert toy_job.trained("killed") == unbroken
    reports = [json.loads((toy_job.folder / run / "report.json").read_text()) for run in ("killed", "unbroken")]
    digests = [report["version"].split("#")[1] for report in reports]
    assert digests[0] == digests[1]
