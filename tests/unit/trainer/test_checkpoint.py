from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.modeling.tiny import save_tiny_model
from argosy.trainer import checkpoint, checkpoint_storage
from argosy.trainer.core import Trainer
from argosy.trainer.options import OptimizerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import CorruptDataError, InvalidInputError, NotFoundError, StorageError
from argosy.types.records import LossConfig, UpdateConfig
from support.training import grouped_batch, mutation, with_own_log_probs

WARM_COSINE = OptimizerOptions(Schedule(1e-2, "cosine", warmup_steps=4, total_steps=10))
CONFIG = UpdateConfig(LossConfig(), mini_batch_size=6, shuffle=True, seed=3)


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer._backend.state()
    return {**state.model, **state.optimizer}


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


async def train(trainer: Trainer, steps: range) -> list[dict[str, float]]:
    """One update per step on that step's own batch; returns the metrics that must repeat."""
    found = []
    for step in steps:
        batch = await with_own_log_probs(trainer, grouped_batch(seed=step))
        answer = await trainer.update(batch, CONFIG, mutation(step))
        found.append({name: value for name, value in answer.metrics.items() if not name.startswith("perf/")})
    return found


RESUME = """
import asyncio, json, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch
from safetensors.torch import save_file
torch.set_num_threads(1)
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from support.training import mutation, options_for
from unit.trainer.test_checkpoint import WARM_COSINE, state_of, train

async def main():
    trainer = Trainer(options_for(Path({model!r}), optimizer=WARM_COSINE), make_backend)
    status = await trainer.load_checkpoint({saved!r}, mutation())
    metrics = await train(trainer, range(status.step, 10))
    save_file({{name: value.clone() for name, value in state_of(trainer).items()}}, {out!r})
    print(json.dumps(metrics))
    trainer.close()

asyncio.run(main())
"""


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_e5_resume_in_a_new_process_repeats_the_unbroken_run_bit_for_bit(
    make_trainer: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    """10 steps with warm-up 4 and cosine, stopped at 5: lr, loss, every weight and moment."""
    trainer = make_trainer(optimizer=WARM_COSINE)
    await train(trainer, range(5))
    saved = tmp_path / "step5"
    assert sorted(await trainer.save_checkpoint(str(saved), mutation(5))) == sorted(checkpoint.FILES)
    expected = await train(trainer, range(5, 10))

    out = tmp_path / "resumed.safetensors"
    tests = Path(__file__).parents[2]
    script = RESUME.format(tests=str(tests), model=str(tiny_folder), saved=str(saved), out=str(out))
    done = run_python(script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    from safetensors.torch import load_file

    assert same_bits(load_file(out), {name: value.clone() for name, value in state_of(trainer).items()})
    rates = [step["actor/lr"] for step in expected]
    assert rates == [WARM_COSINE.schedule.rate(step) for step in range(5, 10)]


async def test_e7_master_weights_and_counters_survive(make_trainer: Any, tmp_path: Path) -> None:
    first = make_trainer(compute_dtype="bfloat16")
    await train(first, range(2))
    first._backend._optimizer.skipped_steps = 5
    await first.save_checkpoint(str(tmp_path / "c"), mutation(2))
    second = make_trainer(compute_dtype="bfloat16")
    status = await second.load_checkpoint(str(tmp_path / "c"), mutation(0))
    assert status.step == 2
    assert same_bits(state_of(first), state_of(second))
    assert {value.dtype for value in state_of(second).values()} == {torch.float32}
    assert second._backend.state().counters["skipped_steps"] == 5


async def test_a_checkpoint_before_the_first_step_restores_an_optimizer_without_moments(
    make_trainer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer()
    await trainer.save_checkpoint(str(tmp_path / "c"), mutation(0))
    start = {name: value.clone() for name, value in state_of(trainer).items()}
    await train(trainer, range(1))
    await trainer.load_checkpoint(str(tmp_path / "c"), mutation(1))
    assert same_bits(state_of(trainer), start)
    assert (await trainer.status()).step == 0


async def test_after_going_back_the_same_request_ids_are_done_again(make_trainer: Any, tmp_path: Path) -> None:
    trainer = make_trainer()
    await trainer.save_checkpoint(str(tmp_path / "c"), mutation(0))
    batch = await with_own_log_probs(trainer, grouped_batch())
    await trainer.update(batch, CONFIG, mutation(0, request_id="run/update/1"))
    after = {name: value.clone() for name, value in state_of(trainer).items()}
    await trainer.load_checkpoint(str(tmp_path / "c"), mutation(1))
    assert not same_bits(state_of(trainer), after)
    await trainer.update(batch, CONFIG, mutation(0, request_id="run/update/1"))
    assert same_bits(state_of(trainer), after)


async def test_loading_takes_the_published_version_back(make_trainer: Any, tmp_path: Path) -> None:
    trainer = make_trainer()
    await trainer.save_checkpoint(str(tmp_path / "c"), mutation(0))
    await trainer.publish_weights("main", 0, mutation(0))
    await trainer.load_checkpoint(str(tmp_path / "c"), mutation(0))
    assert (await trainer.status()).version is None
    with pytest.raises(NotFoundError):
        await trainer.weight_source().get_manifest()


# Faults


@pytest.fixture
async def saved(make_trainer: Any, tmp_path: Path) -> Path:
    trainer = make_trainer()
    await train(trainer, range(1))
    await trainer.save_checkpoint(str(tmp_path / "saved"), mutation(1))
    return tmp_path / "saved"


async def test_h5_every_missing_part_is_named(make_trainer: Any, saved: Path) -> None:
    (saved / "optimizer.safetensors").unlink()
    (saved / "rng.safetensors").unlink()
    with pytest.raises(CorruptDataError, match=r"lacks optimizer\.safetensors, rng\.safetensors"):
        await make_trainer().load_checkpoint(str(saved), mutation())


async def test_h5_no_folder_and_an_empty_folder(make_trainer: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no checkpoint folder"):
        await make_trainer().load_checkpoint(str(tmp_path / "nothing"), mutation())
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptDataError, match=r"lacks model\.safetensors, optimizer"):
        await make_trainer().load_checkpoint(str(tmp_path / "empty"), mutation())


async def test_h5_a_checkpoint_of_another_model_size_names_the_tensors(
    make_trainer: Any, saved: Path, tmp_path: Path
) -> None:
    wide = make_trainer(save_tiny_model(tmp_path / "wide", hidden_size=32))
    before = {name: value.clone() for name, value in state_of(wide).items()}
    with pytest.raises(
        InvalidInputError, match=r"embed_tokens\.weight has shape \(259, 64\), this model's has \(259, 32\)"
    ):
        await wide.load_checkpoint(str(saved), mutation())
    deep = make_trainer(save_tiny_model(tmp_path / "deep", layer_count=3))
    with pytest.raises(InvalidInputError, match=r"layers\.2\.\S+ is missing.* and \d+ more"):
        await deep.load_checkpoint(str(saved), mutation())
    assert same_bits(state_of(wide), before)


@pytest.mark.parametrize("name", checkpoint.FILES)
async def test_e3_a_truncated_file_is_refused_by_name_and_nothing_changes(
    make_trainer: Any, saved: Path, name: str
) -> None:
    data = (saved / name).read_bytes()
    (saved / name).write_bytes(data[: len(data) // 2])
    trainer = make_trainer()
    before = {key: value.clone() for key, value in state_of(trainer).items()}
    with pytest.raises(CorruptDataError, match=name.replace(".", r"\.")):
        await trainer.load_checkpoint(str(saved), mutation())
    assert same_bits(state_of(trainer), before)
    assert (await trainer.status()).step == 0


async def test_a_later_format_is_refused(make_trainer: Any, saved: Path) -> None:
    record = json.loads((saved / "trainer.json").read_text())
    (saved / "trainer.json").write_text(json.dumps(record | {"format": 99}))
    with pytest.raises(InvalidInputError, match="format 99; this release reads format 2"):
        await make_trainer().load_checkpoint(str(saved), mutation())


async def test_e3_a_leftover_is_replaced(make_trainer: Any, saved: Path) -> None:
    (saved / ".model.safetensors.partial").write_bytes(b"half")
    (saved / "model.safetensors").write_bytes(b"torn")
    trainer = make_trainer()
    files = await trainer.save_checkpoint(str(saved), mutation(0))
    assert names_in(saved) == sorted(files) == sorted(set(checkpoint.FILES) - {"optimizer.safetensors"})
    await make_trainer().load_checkpoint(str(saved), mutation(0))


def _save_until_killed(source: str, target: str, ready: Any) -> None:
    loaded = checkpoint.load(Path(source))
    ready.set()
    while True:
        checkpoint.save(Path(target), loaded)


async def test_e3_a_kill_at_any_point_leaves_whole_files_only(make_trainer: Any, saved: Path, tmp_path: Path) -> None:
    """Each file under its own name is whole, whenever the kill comes; over a good checkpoint it stays loadable."""
    target = tmp_path / "target"
    shutil.copytree(saved, target)
    context = multiprocessing.get_context("fork")
    for pause in (0.0, 0.003, 0.01, 0.03):
        ready = context.Event()
        process = context.Process(target=_save_until_killed, args=(str(saved), str(target), ready), daemon=True)
        process.start()
        ready.wait(60)
        process.join(pause)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert checkpoint.load(target).step == 1
    await make_trainer().load_checkpoint(str(target), mutation())


async def test_a_failed_save_leaves_the_old_checkpoint_and_no_litter(
    make_trainer: Any, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: Any, path: Path) -> None:
        path.write_bytes(b"some")
        raise OSError(28, "No space left on device")

    trainer = make_trainer()
    monkeypatch.setattr(checkpoint_storage, "save_file", full)
    with pytest.raises(StorageError, match="no space left"):
        await trainer.save_checkpoint(str(saved), mutation(0))
    monkeypatch.undo()
    assert names_in(saved) == sorted(checkpoint.FILES)
    assert (await trainer.load_checkpoint(str(saved), mutation(0))).step == 1
