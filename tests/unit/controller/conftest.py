from __future__ import annotations

from pathlib import Path

import pytest

from argosy.config import Config
from argosy.modeling.tiny import save_tiny_model
from support.toy import write_rows


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("controller") / "tiny")


@pytest.fixture
def small_job(tiny_model: Path, tmp_path: Path) -> Config:
    """12 rows in file order, 4 prompts of 4 responses a step, no validation; for `run_recorded`."""
    write_rows(tmp_path / "train.jsonl", [f"question {i}" for i in range(12)])
    return Config().with_values({
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": str(tiny_model),
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "actor_rollout_ref.rollout.n": 4,
        "data.train_files": [str(tmp_path / "train.jsonl")],
        "data.train_batch_size": 4,
        "data.shuffle": False,
        "data.max_prompt_length": 64,
        "data.max_response_length": 8,
        "trainer.default_local_dir": str(tmp_path / "run"),
        "trainer.logger": ["file"],
        "trainer.total_epochs": 1,
        "trainer.val_before_train": False,
    })  # fmt: skip
