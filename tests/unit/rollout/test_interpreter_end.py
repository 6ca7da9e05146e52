"""A process that ends while its engine computes, or has just closed it, ends in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from argosy.modeling.tiny import save_tiny_model

COMPUTES = """
import asyncio, sys
from argosy.rollout.core import HfRollout, HfRolloutOptions
from argosy.types.ids import SampleId
from argosy.types.records import GenerateRequest, SamplingParams

async def begin():
    params = SamplingParams(1900, ignore_eos=True)
    await core.engine.submit([GenerateRequest(SampleId(0, 0, k), (5, 6, 7), params) for k in range(4)], print, 0)
    await asyncio.sleep(0.3)

options = HfRolloutOptions(sys.argv[1], device="cpu", slot_count=4, max_model_len=2000, native_kernels=False)
core = HfRollout(options, decode=lambda ids: "")
asyncio.run(begin())
"""

CLOSED = """
import asyncio, atexit, sys, threading, time

ending = threading.Event()
atexit.register(lambda: (ending.set(), time.sleep(0.0005)))  # the last before the end: threads still get a turn

from argosy.rollout.core import HfRollout, HfRolloutOptions
from argosy.rollout.engines.hf import adapter

class LateFuture(adapter.Future):
    def set_result(self, result):
        super().set_result(result)
        ending.wait(1.0)  # whoever says that it is done has its last steps before it

async def run():
    core = HfRollout(HfRolloutOptions(sys.argv[1], device="cpu"), decode=lambda ids: "")
    await core.close()

adapter.Future = LateFuture
asyncio.run(run())
"""


@pytest.mark.parametrize("program", [COMPUTES, CLOSED], ids=["computes", "closed"])
def test_the_interpreter_may_end(program: str, tmp_path: Path) -> None:
    """While the engine computes, or just after it was closed.

    A daemon thread that is inside native code then, or frees the model, would take the process down ("terminate …").
    """
    model = save_tiny_model(tmp_path / "tiny")
    ended = subprocess.run(
        [sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (ended.returncode, "terminate" in ended.stderr) == (0, False), ended.stderr[-2000:]
