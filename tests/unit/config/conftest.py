"""A small valid run for the configuration's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from argosy.config import Config, load


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of a run that is valid as it stands."""
    folder = tmp_path_factory.mktemp("valid_run")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    for name in ("train", "val"):
        (folder / f"{name}.jsonl").write_text('{"prompt": []}\n')
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/train.jsonl",
        f"data.val_files={folder}/val.jsonl",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        f"actor_rollout_ref.model.path={folder}/model",
        f"trainer.default_local_dir={folder}/run",
    ]


@pytest.fixture(scope="session")
def valid(base: list[str]) -> Config:
    return load(base)


def quietly(*overrides: str) -> tuple[Config, list[str]]:
    """The Config and what was warned about."""
    warnings: list[str] = []
    return load(overrides, on_warning=warnings.append), warnings


@pytest.fixture
def load_with_warnings() -> Callable[..., tuple[Config, list[str]]]:
    return quietly
