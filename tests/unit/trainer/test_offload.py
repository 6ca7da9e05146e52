"""A trainer that leaves the device gives back what its allocator kept for reuse, and goes on as if nothing had been."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import asyncio, sys
from pathlib import Path
import psutil, torch
from argosy.modeling.memory import keep_freed_memory
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.types.records import LossConfig, UpdateConfig
from support.training import grouped_batch, mutation, options_for
from argosy.modeling.microbatch import MicroBatchLimit

async def main():
    keep_freed_memory()  # as every trainer process does
    folder = save_tiny_model(Path(sys.argv[1]), hidden_size=256, layer_count=4)
    trainer = Trainer(options_for(folder, update_limit=MicroBatchLimit(max_tokens=100000)), make_backend)
    batch, config = grouped_batch(group_count=40, n=8), UpdateConfig(LossConfig(), mini_batch_size=320)
    batch = batch.with_column("old_log_probs", batch.ragged("advantages"))
    rss = lambda: psutil.Process().memory_info().rss
    for step in range(2):  # after the very first one, memory goes back anyway
        await trainer.update(batch, config, mutation(step))
    busy = rss()
    await trainer.offload(mutation(2))
    away = rss()
    result = await trainer.update(batch, config, mutation(2))
    print(busy - away, result.step)
    trainer.close()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_kept_memory_goes_back_to_the_system(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model")], env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    freed, step = map(int, done.stdout.split())
    assert freed > 100 * 2**20
    assert step == 3
