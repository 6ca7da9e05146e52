"""A toy job that a 115 000-parameter random byte model learns in seconds: letters of the alphabet's first half.

A random model's bytes are such letters about one time in twenty; the reward is their share of the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REWARD_SOURCE = """
GOOD = set("abcdefghijklm")

def compute_score(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):
    share = sum(c in GOOD for c in solution_str) / max(len(solution_str), 1)
    return {"score": scale * share, "acc": share}
"""


@dataclass(frozen=True)
class ToyJob:
    """Files of the toy job, and how to run it."""

    folder: Path

    def command(self, run: str, *overrides: str) -> list[str]:
        """The command line, as a user types it."""
        base = [
            "algorithm.adv_estimator=grpo",
            f"actor_rollout_ref.model.path={self.folder}/model",
            f"data.train_files={self.folder}/train.jsonl",
            f"data.val_files={self.folder}/val.jsonl",
            f"custom_reward_function.path={self.folder}/reward.py",
            "data.train_batch_size=8",
            "data.max_prompt_length=64",
            "data.max_response_length=8",
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            "actor_rollout_ref.actor.optim.lr=1e-2",
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.actor.kl_loss_coef=0.001",
            "trainer.logger=[console,file,tensorboard]",
            f"trainer.default_local_dir={self.folder}/{run}",
            "argosy.deterministic=true",
        ]
        return [sys.executable, "-m", "argosy.cli.main", "train", *base, *overrides]

    def start(self, run: str, *overrides: str) -> subprocess.Popen[str]:
        """Start it, its output in pipes."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.Popen(
            self.command(run, *overrides), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def run(self, run: str, *overrides: str, timeout_s: float = 180) -> tuple[int, str, str]:
        """Run it to its end: exit code, stdout, stderr."""
        process = self.start(run, *overrides)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"the run did not end within {timeout_s} s:\n{out}\n{err}") from None
        return process.returncode, out, err

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Training rows of metrics.jsonl, by step, the newest of a repeated step."""
        from argosy.controller.loggers.jsonl import read_metrics

        rows = read_metrics(self.folder / run / "metrics.jsonl")
        return [row for row in rows if "training/global_step" in row]

    def trained(self, run: str) -> list[dict[str, Any]]:
        """What each step trained on and what came out, without times and addresses: equal runs give equal lists."""
        keep = ("critic/", "actor/", "response_length/", "reward/", "training/")
        return [{k: v for k, v in row.items() if k.startswith(keep) or k == "step"} for row in self.metrics(run)]


def make_toy_job(folder: Path) -> ToyJob:
    """Write model, data and reward function."""
    from argosy.modeling.tiny import save_tiny_model

    save_tiny_model(folder / "model", seed=1)
    (folder / "reward.py").write_text(REWARD_SOURCE)
    write_rows(folder / "train.jsonl", [f"say something {i}" for i in range(40)])
    write_rows(folder / "val.jsonl", [f"say more {i}" for i in range(7)])
    return ToyJob(folder)


def write_rows(path: Path, questions: Sequence[str], ground_truth: str = "letters") -> None:
    """Rows in verl's schema."""
    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": question}],
            "ability": "toy",
            "reward_model": {"style": "rule", "ground_truth": ground_truth},
            "extra_info": {"index": index, "split": path.stem},
        }
        for index, question in enumerate(questions)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
