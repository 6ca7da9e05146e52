"""A process that ends while its engine computes, and never closed it, ends in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from argosy.modeling.tiny import save_tiny_model

PROGRAM = """
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


def test_the_interpreter_may_end_while_the_engine_computes(tmp_path: Path) -> None:
    """A daemon thread inside native code would take the process down ("terminate called …")."""
    model = save_tiny_model(tmp_path / "tiny")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (ended.returncode, "terminate" in ended.stderr) == (0, False), ended.stderr[-2000:]
