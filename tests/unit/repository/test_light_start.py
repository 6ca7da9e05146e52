"""What programs don't need isn't imported while they start: each of these modules costs from a tenth to two seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from argosy.modeling.tiny import save_tiny_model

TRACKERS = {
    "matplotlib",
    "tensorboard",
    "pandas",
    "scipy",
    "sklearn",
    "datasets",
    "tensorflow",
    "wandb",
    "pyarrow.dataset",
}
MODELS = {"torch", "transformers", "safetensors"}
TRAINING = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp", "sympy", "peft"}

ROLLOUT = """
import asyncio
from argosy.config import Config
from argosy.rollout.build import build_core
core = build_core(Config().with_values({"actor_rollout_ref.model.path": MODEL, "actor_rollout_ref.rollout.name": "hf"}))
async def first_token():
    await core.start()
    await core.close()
asyncio.run(first_token())
import argosy.rpc.host, argosy.rollout.service
"""
"""A rollout server as far as its first token (the warm-up)."""

PROGRAMS: dict[str, tuple[str, set[str]]] = {
    "status": ("import argosy.cli.status, argosy.controller.running, argosy.rpc.clients.controller", MODELS | TRAINING),
    "help": (
        "from argosy.cli.main import build_parser; build_parser()",
        MODELS | TRAINING | {"grpc", "numpy", "pyarrow"},
    ),
    "controller": ("import argosy.controller.entry, argosy.controller.entry_fleet", MODELS | TRAINING),
    "reward": ("import argosy.rpc.host, argosy.reward.__main__, argosy.reward.build", MODELS | TRAINING),
    "rollout": (ROLLOUT, {"transformers", "accelerate", "hydra"} | TRAINING),
}
"""What is run, and what mustn't be there afterwards."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_does_not_need_is_not_imported(tmp_path: Path, name: str) -> None:
    code, unwanted = PROGRAMS[name]
    if name == "rollout":
        save_tiny_model(tmp_path)
    code = f"MODEL = {str(tmp_path)!r}\n{code}\nimport sys\nprint(sorted({unwanted | TRACKERS!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"
