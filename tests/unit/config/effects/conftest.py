"""A tiny job whose keys the tests change one at a time, and the real cores that are built from it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from argosy.config import Config
from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.core import HfRollout
from support.toy import REWARD_SOURCE, write_rows
from unit.config.effects.support import Core, Cores, build

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("effects") / "tiny", weight_scale=3.0)


@pytest.fixture
def job(tiny: Path, tmp_path: Path) -> Config:
    """8 training and 4 validation rows; one step is 4 prompts of 2 responses of up to 8 tokens."""
    write_rows(tmp_path / "train.jsonl", [f"question {i}" for i in range(8)])
    write_rows(tmp_path / "val.jsonl", [f"exam {i}" for i in range(4)])
    (tmp_path / "reward.py").write_text(REWARD_SOURCE)
    return Config().with_values({
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": str(tiny),
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "actor_rollout_ref.rollout.n": 2,
        "data.train_files": [str(tmp_path / "train.jsonl")],
        "data.val_files": [str(tmp_path / "val.jsonl")],
        "data.train_batch_size": 4,
        "data.max_prompt_length": 64,
        "data.max_response_length": 8,
        "trainer.default_local_dir": str(tmp_path / "run"),
        "trainer.logger": ["file"],
        "trainer.total_epochs": 1,
        "argosy.parity.enabled": False,
        "argosy.rollout.device": "cpu",
        "argosy.rollout.slot_count": 8,
        "argosy.trainer.device": "cpu",
        "argosy.reference.device": "cpu",
    })  # fmt: skip


@pytest.fixture
async def cores() -> AsyncIterator[Cores]:
    """cores(role, config): the core that the service's own build function makes, closed at the end."""
    made: list[Core] = []

    def make(role: str, config: Config) -> Core:
        made.append(build(role, config))
        return made[-1]

    yield make
    for core in made:
        closing = core.close()
        if inspect.isawaitable(closing):
            await closing


@pytest.fixture(scope="session")
def engine(tiny: Path) -> Iterator[HfRollout]:
    """One engine for all tests of sampling keys, which travel in the requests."""
    config = Config().with_values({
        "actor_rollout_ref.model.path": str(tiny), "argosy.rollout.device": "cpu", "argosy.rollout.slot_count": 8,
        "data.max_prompt_length": 64, "data.max_response_length": 64,
    })  # fmt: skip
    core = build("rollout", config)
    yield core
    asyncio.run(core.close())
