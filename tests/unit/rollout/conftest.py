"""Tiny models, and engines over them that are closed at the end of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.core import HfRollout, HfRolloutOptions
from argosy.text.tokenizer import load_tokenizer
from unit.rollout.support import Open


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", weight_scale=6.0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "other", seed=1, weight_scale=6.0)


@pytest.fixture
def native() -> bool:
    """Whether an engine uses the compiled passes. Off: tests that act while samples run need them to take a while."""
    return False


@pytest.fixture
async def open_rollout(tiny: Path, native: bool) -> AsyncIterator[Open]:
    opened: list[HfRollout] = []

    async def make(path: Path | None = None, **options: Any) -> HfRollout:
        folder = path or tiny
        defaults: dict[str, Any] = {
            "slot_count": 8,
            "device": "cpu",
            "max_model_len": 256,
            "native_kernels": native,
        }
        settings = HfRolloutOptions(model_path=str(folder), **(defaults | options))
        rollout = HfRollout(settings, load_tokenizer(folder).decode)
        opened.append(rollout)
        return rollout

    yield make
    for rollout in opened:
        await rollout.close()
