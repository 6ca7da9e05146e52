"""PPO with a critic, through six real processes and a real etcd; and the same in one process."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from argosy.cli.main import main
from integration.test_train import wait_for_step
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("ppo")

STEPS = 10
PPO = (
    "algorithm.adv_estimator=gae",
    "algorithm.lam=0.95",
    "critic.optim.lr=3e-3",
    "critic.ppo_epochs=2",
    "critic.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)
RUN = (*PPO, f"trainer.total_training_steps={STEPS}")


@pytest.fixture(scope="module")
def local_run(toy_job: ToyJob) -> Path:
    """One finished run through all processes: its folder."""
    code, out, err = toy_job.run("ppo", *RUN)
    assert code == 0, out + err
    return toy_job.folder / "ppo"


@pytest.fixture(scope="module")
def unbroken(toy_job: ToyJob) -> list[dict[str, Any]]:
    """The same job in one process."""
    assert train(toy_job, "ppo-unbroken", f"trainer.total_training_steps={STEPS}") == 0
    return toy_job.trained("ppo-unbroken")


def train(toy_job: ToyJob, run: str, *overrides: str) -> int:
    """The job in this process."""
    words = toy_job.command(run, *PPO, "argosy.placement=inprocess", *overrides)
    return main(words[words.index("train") :])


def test_policy_and_critic_learn_through_six_processes(toy_job: ToyJob, local_run: Path) -> None:
    rows = toy_job.metrics("ppo")
    rewards = [row["critic/score/mean"] for row in rows]
    assert len(rewards) == STEPS
    assert max(rewards[-3:]) > 3 * rewards[0]
    members = {path.stem for path in (local_run / "logs").glob("*.log")}
    assert members >= {"controller-0", "rollout-0", "reward-0", "critic-0", "trainer-0", "etcd"}
    assert "reference-0" not in members
    assert rows[0]["critic/values/mean"] == rows[0]["critic/vf_explained_var"] == 0.0, "a new critic values all at 0"
    # The critic follows the rising reward: without it, values would stay at 0.
    assert rows[-1]["critic/values/mean"] > 0.25 * rows[-1]["critic/returns/mean"]


def test_what_a_step_reports(toy_job: ToyJob, local_run: Path) -> None:
    row = toy_job.metrics("ppo")[-1]
    wanted = {f"critic/{name}" for name in ("vf_loss", "vf_clipfrac", "vpred_mean", "vf_explained_var")}
    wanted |= {"critic/grad_norm", "critic/lr", "critic/optimizer_steps"}
    kinds = ("values", "returns", "advantages", "rewards", "score")
    wanted |= {f"critic/{kind}/{how}" for kind in kinds for how in ("mean", "max", "min")}
    wanted |= {"timing_s/values", "timing_s/update_critic", "timing_s/update_actor", "perf/critic_cpu_memory_used_gb"}
    assert wanted <= row.keys()
    assert row["critic/optimizer_steps"] == 4  # 2 passes of 2 mini-batches
    assert row["critic/lr"] == 3e-3
    assert row["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-5)


def test_one_process_gives_the_same_numbers(toy_job: ToyJob, local_run: Path, unbroken: list[dict[str, Any]]) -> None:
    assert toy_job.trained("ppo") == unbroken
    assert digest(toy_job, "ppo") == digest(toy_job, "ppo-unbroken")


def digest(toy_job: ToyJob, run: str) -> str:
    """Of the policy's last weights."""
    version: str = json.loads((toy_job.folder / run / "report.json").read_text())["version"]
    return version.split("#")[1]


def test_one_trace_per_step_across_processes(local_run: Path) -> None:
    services: dict[str, set[str]] = defaultdict(set)
    steps: dict[int, str] = {}
    for path in (local_run / "traces").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            span = json.loads(line)
            services[span["trace_id"]].add(path.stem)
            if span["name"] == "step" and path.stem == "controller-0":
                steps[span["attributes"]["argosy.step"]] = span["trace_id"]
    assert len(set(steps.values())) == STEPS
    everyone = {"controller-0", "rollout-0", "reward-0", "critic-0", "trainer-0"}
    assert [step for step, trace in steps.items() if not services[trace] >= everyone] == []


def test_a_checkpoint_and_an_export_of_each(toy_job: ToyJob, local_run: Path) -> None:
    from transformers import AutoModelForTokenClassification

    checkpoint = local_run / f"global_step_{STEPS}"
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    assert {name.split("/")[0] for name in files} == {"actor", "critic", "controller.json"}
    model: Any = AutoModelForTokenClassification.from_pretrained(local_run / "hf_critic")
    assert tuple(model.score.weight.shape) == (1, 64)
    assert train(
        toy_job, "ppo-next", "trainer.total_training_steps=1", f"critic.model.path={local_run / 'hf_critic'}"
    ) == 0  # fmt: skip
    [row] = toy_job.metrics("ppo-next")
    assert row["critic/values/mean"] != 0.0, "the next run starts with the critic of this one"


def test_e5_c13_resume_after_a_kill_reproduces_the_unbroken_run(
    toy_job: ToyJob, unbroken: list[dict[str, Any]]
) -> None:
    """kill -9 of everything between two checkpoints; the same command again; equal bit for bit, the critic too."""
    overrides = (*RUN, "trainer.save_freq=3")
    process = toy_job.start("ppo-killed", *overrides)
    wait_for_step(toy_job, "ppo-killed", 5)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    code, out, err = toy_job.run("ppo-killed", *overrides)
    assert code == 0, out + err
    assert "resumed from" in out
    assert toy_job.trained("ppo-killed") == unbroken
    assert digest(toy_job, "ppo-killed") == digest(toy_job, "ppo-unbroken")


def test_warm_up_trains_only_the_critic_and_resumes(toy_job: ToyJob) -> None:
    """Policy and critic are at different steps of their own when the run stops in between."""
    warm = ("trainer.critic_warmup=2", "actor_rollout_ref.actor.optim.lr_scheduler_type=linear")
    assert train(toy_job, "warm", "trainer.total_training_steps=5", *warm) == 0
    rows = toy_job.metrics("warm")
    assert ["actor/lr" in row for row in rows] == [False, False, True, True, True]
    assert ["critic/lr" in row for row in rows] == [True] * 5
    assert [round(row["actor/lr"], 6) for row in rows[2:]] == [0.01, 0.006667, 0.003333]
    saved = ("trainer.total_training_steps=5", "trainer.save_freq=1", *warm)
    assert train(toy_job, "warm-again", *saved) == 0
    for step in (4, 2):
        remove_checkpoint(toy_job.folder / "warm-again", step)
        assert train(toy_job, "warm-again", *saved) == 0
        assert toy_job.trained("warm-again") == toy_job.trained("warm")
    assert digest(toy_job, "warm-again") == digest(toy_job, "warm")


def remove_checkpoint(folder: Path, step: int) -> None:
    """As if the run had ended before it, and after the one before."""
    import shutil

    for later in folder.glob("global_step_*"):
        if int(later.name.rpartition("_")[2]) >= step:
            shutil.rmtree(later)
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{step - 1}\n")


def test_another_warm_up_at_a_resume_is_refused(toy_job: ToyJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(toy_job, "other-warm-up", "trainer.total_training_steps=2", "trainer.critic_warmup=1") == 0
    code = train(toy_job, "other-warm-up", "trainer.total_training_steps=4", "trainer.critic_warmup=0")
    assert code == 2
    assert "trainer.critic_warmup=0 means 2" in capsys.readouterr().err


def test_h5_a_checkpoint_without_a_critic_is_refused_by_name(
    toy_job: ToyJob, capsys: pytest.CaptureFixture[str]
) -> None:
    words = toy_job.command("was-grpo", "argosy.placement=inprocess", "trainer.val_before_train=false")
    assert main([*words[words.index("train") :], "trainer.total_training_steps=1"]) == 0
    assert train(toy_job, "was-grpo", "trainer.total_training_steps=2") == 2
    assert "holds no critic" in capsys.readouterr().err
