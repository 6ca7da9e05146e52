from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from support.openai_endpoint import Served, served
from support.toy import write_rows

Serve = Callable[..., Any]


@pytest.fixture
def agent_job(tiny_model: Path, tmp_path: Path) -> Config:
    """Sessions in groups of 2 on a random byte model; the whole context holds 512 tokens."""
    write_rows(tmp_path / "train.jsonl", [f"question {i}" for i in range(12)])
    (tmp_path / "run").mkdir()
    return Config().with_values({
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": str(tiny_model),
        "actor_rollout_ref.rollout.n": 2,
        "data.train_files": [str(tmp_path / "train.jsonl")],
        "data.train_batch_size": 4,
        "data.max_prompt_length": 200,
        "data.max_response_length": 312,
        "trainer.default_local_dir": str(tmp_path / "run"),
        "argosy.openai.enable": True,
        "argosy.openai.source": "sessions",
        "argosy.rollout.device": "cpu",
        "argosy.rollout.slot_count": 16,
        "argosy.rollout.native_kernels": False,
    })  # fmt: skip


@pytest.fixture
async def serve(agent_job: Config, tmp_path: Path) -> AsyncIterator[Serve]:
    """serve(key=value, …): an endpoint with these keys of argosy.openai (or full paths in a dict)."""
    async with AsyncExitStack() as stack:

        async def start(paths: dict[str, Any] | None = None, **options: Any) -> Served:
            values = {f"argosy.openai.{name}": value for name, value in options.items()} | (paths or {})
            return await stack.enter_async_context(served(agent_job.with_values(values), tmp_path))

        yield start
