"""The storage layer with two gloo processes: whatever wrote a checkpoint, any number of ranks reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from argosy.trainer import checkpoint
from argosy.trainer.backends.base import BackendState
from argosy.trainer.checkpoint_saver import CheckpointSaver
from argosy.types.errors import CorruptDataError

pytestmark = pytest.mark.xdist_group("checkpoint-ranks")

RANK = """
import sys
import threading
from pathlib import Path
import torch
from torch import distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
sys.path.insert(0, {tests!r})
from unit.trainer.test_checkpoint_ranks import whole, state_over
from argosy.trainer import checkpoint
from argosy.trainer.checkpoint_saver import CheckpointSaver
from argosy.types.errors import StorageError

rank, folder = int(sys.argv[1]), Path({folder!r})
dist.init_process_group("gloo", init_method="file://" + str(folder / "rendezvous"), rank=rank, world_size=2)
mesh, group = init_device_mesh("cpu", (2,)), dist.new_group(backend="gloo")
rows = {{name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole(0).items()}}
columns = {{name: distribute_tensor(tensor, mesh, [Shard(tensor.ndim - 1)]) for name, tensor in whole(0).items()}}
saver = CheckpointSaver(group)

# One process saved: two load it, and save it sharded by rows. What happens to the weights after that is not in it.
loaded = checkpoint.load(folder / "one", rows, group)
assert loaded.step == 7 and loaded.state.counters == {{"skipped_steps": 3}}
for name, tensor in whole(1).items():
    assert torch.equal(loaded.state.model[name].full_tensor(), tensor), name
    assert loaded.state.model[name].placements == (Shard(0),)
    assert torch.equal(loaded.state.optimizer["exp_avg/" + name].full_tensor(), tensor * 2), name
torch.manual_seed(100 + rank)
state = state_over(loaded.state.model, rng=torch.get_rng_state())
pending = saver.start(folder / "two", 8, state)
for tensor in state.model.values():
    tensor.to_local().zero_()
files = pending.result(60)
assert len(files) == 7 and all((folder / "two" / name).is_file() for name in files), files

# Two load it in another layout.
again = checkpoint.load(folder / "two", columns, group)
for name, tensor in whole(1).items():
    assert torch.equal(again.state.model[name].full_tensor(), tensor), name
assert torch.equal(again.state.rng["cpu"], state.rng["cpu"])

# Without a copy: it has ended when the call returns.
waited = saver.start(folder / "waited", 9, again.state, background=False)
assert waited.done() and waited.result(0) == files, waited
whole_again = checkpoint.load(folder / "waited", rows, group)
for name, tensor in whole(1).items():
    assert torch.equal(whole_again.state.model[name].full_tensor(), tensor), name

# A rank that can't write: both are told, of that cause.
if rank == 1:
    from argosy.trainer import checkpoint_storage
    def full(path, write):
        raise StorageError("no space left on rank 1")
    checkpoint_storage.write_whole = full
failed = saver.start(folder / "full", 9, again.state)
assert "no space left on rank 1" in str(failed.exception(60)) and not (folder / "full" / "trainer.json").exists()
saver.close()
dist.destroy_process_group()
"""


def whole(seed: int) -> dict[str, torch.Tensor]:
    """Extents that two ranks can't halve, one smaller than the number of ranks, and a vector."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"layers.0.weight": (5, 4), "norm.weight": (3,), "tiny": (1, 3)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def state_over(model: dict[str, torch.Tensor], rng: torch.Tensor) -> BackendState:
    optimizer: dict[str, torch.Tensor] = {f"exp_avg/{name}": tensor * 2 for name, tensor in model.items()}
    optimizer |= {f"step/{name}": torch.tensor(4.0) for name in model}
    return BackendState(model, optimizer, {"cpu": rng}, {"skipped_steps": 3})


def test_one_to_two_to_one(tmp_path: Path) -> None:
    torch.manual_seed(5)
    rng = torch.get_rng_state()
    checkpoint.save(tmp_path / "one", checkpoint.TrainerCheckpoint(7, state_over(whole(1), rng)))
    script = RANK.format(tests=str(Path(__file__).parents[2]), folder=str(tmp_path))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", script, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors)

    back = checkpoint.load(tmp_path / "two")
    assert back.step == 8
    for name, tensor in whole(1).items():
        assert torch.equal(back.state.model[name], tensor)
        assert torch.equal(back.state.optimizer[f"exp_avg/{name}"], tensor * 2)
        assert back.state.optimizer[f"step/{name}"] == 4
    torch.manual_seed(100)
    assert torch.equal(back.state.rng["cpu"], torch.get_rng_state())

    half = load_file(tmp_path / "two" / "model-00002-of-00002.safetensors")
    assert half["layers.0.weight@3,0"].shape == (2, 4)
    lost = tmp_path / "two" / "optimizer-00001-of-00002.safetensors"
    lost.unlink()
    with pytest.raises(CorruptDataError, match=f"lacks {lost.name}"):
        checkpoint.load(tmp_path / "two")


def test_a_checkpoint_of_more_ranks_is_replaced_by_one_of_fewer(tmp_path: Path) -> None:
    rng = torch.get_rng_state()
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"of an earlier save")
    checkpoint.save(tmp_path, checkpoint.TrainerCheckpoint(7, state_over(whole(1), rng)))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(checkpoint.FILES)


def test_nothing_on_disk_needs_pickle(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, checkpoint.TrainerCheckpoint(7, state_over(whole(1), torch.get_rng_state())))
    for path in tmp_path.iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            load_file(path)


def test_what_is_trained_before_the_writing_begins_is_not_in_it(tmp_path: Path) -> None:
    """The writing thread is held up until the weights have changed."""
    saver, may_write = CheckpointSaver(), threading.Event()
    saver._thread.submit(may_write.wait, 60)
    model = whole(1)
    saving = saver.start(tmp_path / "c", 7, state_over(model, torch.get_rng_state()))
    for tensor in model.values():
        tensor.zero_()
    assert not saving.done()
    may_write.set()
    assert saving.result(60)
    saver.close()
    back = checkpoint.load(tmp_path / "c")
    assert all(torch.equal(back.state.model[name], tensor) for name, tensor in whole(1).items())


def test_without_background_nothing_is_copied_and_the_call_waits(tmp_path: Path) -> None:
    """What changes before the writing thread's turn is in it, so the file was made from the weights themselves."""
    saver, may_write = CheckpointSaver(), threading.Event()
    saver._thread.submit(may_write.wait, 60)
    model = whole(1)
    state = state_over(model, torch.get_rng_state())
    with ThreadPoolExecutor(1) as caller:
        call = caller.submit(saver.start, tmp_path / "c", 7, state, background=False)
        time.sleep(0.2)
        assert not call.done()
        for tensor in model.values():
            tensor.zero_()
        may_write.set()
        assert call.result(60).done()
    saver.close()
    back = checkpoint.load(tmp_path / "c")
    assert not any(tensor.any() for tensor in back.state.model.values())
