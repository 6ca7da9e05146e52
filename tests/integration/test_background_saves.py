"""kill -9 while a real trainer saves in the background: the last complete checkpoint is whole and of its step."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.controller.recovery import CheckpointStore, read_checkpoint
from argosy.controller.stages.save import CheckpointSaves
from argosy.membership.memory import MemoryMembership
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.types.errors import CorruptDataError
from argosy.types.records import LossConfig, Mutation, UpdateConfig
from support.training import grouped_batch, mutation, options_for

pytestmark = pytest.mark.xdist_group("background-saves")

CONFIG = UpdateConfig(LossConfig(), mini_batch_size=12)


class Context:
    """What of a RunContext saving uses."""

    run_id, term, deadline_s = "run", 1, 60.0

    def __init__(self) -> None:
        self.membership = MemoryMembership()

    def trainer_step(self, name: str, step: int) -> int:
        return step

    def mutation(self, *parts: object, expected_step: int | None = None) -> Mutation:
        return mutation(expected_step, "/".join(map(str, parts)))


async def step_once(trainer: Trainer, step: int) -> None:
    await trainer.update(grouped_batch(seed=step), CONFIG, mutation(step))


async def train_and_save(model: Path, folder: Path) -> None:
    """Train for ever, a checkpoint at every step; tell each step that is trained."""
    torch.set_num_threads(1)
    trainer = Trainer(options_for(model), make_backend)
    context: Any = Context()
    await context.membership.elect("run", candidate="controller-0")
    saves = CheckpointSaves(
        context, CheckpointStore(folder, 2), {"actor": trainer}, background=True, done=lambda *_: None
    )
    step = 0
    while True:
        await saves.start(step, {"step": step})
        await step_once(trainer, step)
        step += 1
        print(step, flush=True)


SCRIPT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from integration.test_background_saves import train_and_save
asyncio.run(train_and_save(Path({model!r}), Path({folder!r})))
"""


def killed_after(model: Path, folder: Path, steps: int) -> int:
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), model=str(model), folder=str(folder))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(steps)]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return int(lines[-1])


async def state_at(model: Path, step: int) -> dict[str, torch.Tensor]:
    trainer = Trainer(options_for(model), make_backend)
    for number in range(step):
        await step_once(trainer, number)
    state = trainer._backend.state()
    trainer.close()
    return {name: tensor.clone() for name, tensor in [*state.model.items(), *state.optimizer.items()]}


def test_e3_kill_during_a_background_save(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model, folder = save_tiny_model(tmp_path / "model", weight_scale=3.0), tmp_path / "run"
    told = killed_after(model, folder, 5)
    latest = CheckpointStore(folder, 2).latest()
    assert latest is not None
    assert latest.step >= told - 2, "at most the save under way is lost"
    assert len(CheckpointStore(folder, 2).complete()) <= 3, "a kill between the newest's manifest and the oldest's end"

    async def restored() -> dict[str, torch.Tensor]:
        trainer = Trainer(options_for(model), make_backend)
        status = await trainer.load_checkpoint(str(latest.actor), mutation())
        assert status.step == latest.step
        state = trainer._backend.state()
        trainer.close()
        return {name: tensor.clone() for name, tensor in [*state.model.items(), *state.optimizer.items()]}

    found, expected = asyncio.run(restored()), asyncio.run(state_at(model, latest.step))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found), "no later step has leaked into it"

    for name in ("model.safetensors", "trainer.json"):
        whole = (latest.actor / name).read_bytes()
        (latest.actor / name).write_bytes(whole[:-7])
        with pytest.raises(CorruptDataError, match=name):
            read_checkpoint(latest.path)
        (latest.actor / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CorruptDataError, match=f"{name} does not match its checksum"):
            read_checkpoint(latest.path)
        (latest.actor / name).write_bytes(whole)
    read_checkpoint(latest.path)

    store, after = CheckpointStore(folder, 2), told + 1
    store.commit(after, "run", store.begin(after), {"step": after})
    assert len(store.complete()) == 2, "the first save of the next start removes what the kill has left"
    assert not list(folder.glob(".global_step_*"))
