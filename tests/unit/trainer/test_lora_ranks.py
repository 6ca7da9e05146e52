"""LoRA over FSDP ranks: the same numbers, weights and checkpoints as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from argosy.trainer.backends import make_backend
from argosy.trainer.lora import ADAPTER_FOLDER, BASE_LOG_PROBS
from argosy.trainer.objective import global_normalizer
from argosy.trainer.options import LoraOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.types.errors import ConfigError
from argosy.types.records import LossConfig
from support.training import grouped_batch, options_for

pytestmark = pytest.mark.xdist_group("lora-ranks")

LORA = LoraOptions(rank=4, alpha=8)
COLUMNS = ["log_probs", BASE_LOG_PROBS]


def steps(backend: Any, *seeds: int) -> None:
    for seed in seeds:
        batch = grouped_batch(seed=seed)
        backend.forward_backward(batch, LossConfig(), global_normalizer(batch))
        backend.optim_step(1e-2)


def evaluated(backend: Any) -> np.ndarray[Any, Any]:
    """[2, tokens]: of the adapter on and off."""
    answer = backend.evaluate(grouped_batch(seed=9), COLUMNS, 1.0, lambda: False)
    return np.stack([answer.ragged(name).values for name in COLUMNS])


@pytest.fixture
def two_ranks(tiny_folder: Path) -> Iterator[Any]:
    parallel = ParallelOptions(world_size=2)
    backend = make_backend(options_for(tiny_folder, lora=LORA, backend="fsdp", parallel=parallel, threads=1))
    yield backend
    backend.close()


def test_two_ranks_train_save_and_load_an_adapter_as_one_does(
    tiny_folder: Path, tmp_path: Path, two_ranks: Any
) -> None:
    """The first pass of all has the adapter off: it must train all the same."""
    one = make_backend(options_for(tiny_folder, lora=LORA))
    start = one.weights()[0]
    assert np.allclose(evaluated(two_ranks), evaluated(one), atol=1e-5)
    for backend in (one, two_ranks):
        steps(backend, 0, 1)
    after, weights = evaluated(one), one.weights()[0]
    one.start_save(tmp_path / "one", 2).result(60)
    assert np.allclose(evaluated(two_ranks), after, atol=2e-4)
    found = two_ranks.weights()[0]
    assert found.keys() == weights.keys()
    assert all(torch.allclose(found[name], weights[name], atol=1e-4) for name in weights)
    assert max(float((found[name] - start[name]).abs().max()) for name in found) > 1e-3

    files = two_ranks.start_save(tmp_path / "two", 2).result(60)
    assert "model-00001-of-00002.safetensors" in files
    steps(two_ranks, 2)
    assert not np.allclose(evaluated(two_ranks), after, atol=2e-4)
    assert two_ranks.load_checkpoint(tmp_path / "one") == 2
    assert np.allclose(evaluated(two_ranks), after, atol=1e-5)
    again = make_backend(options_for(tiny_folder, lora=LORA))
    assert again.load_checkpoint(tmp_path / "two") == 2
    assert np.allclose(evaluated(again), after, atol=2e-4)

    two_ranks.model_for_export().save_pretrained(tmp_path / "hf")
    assert (tmp_path / "hf" / ADAPTER_FOLDER / "adapter_model.safetensors").is_file()
    merged = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.allclose(tensor, weights[name], atol=1e-4) for name, tensor in merged.items())
    for backend in (one, again):
        backend.close()


def test_tensor_parallel_is_refused_with_the_number(tiny_folder: Path) -> None:
    parallel = ParallelOptions(world_size=2, tensor_parallel=2)
    with pytest.raises(ConfigError, match="tensor_parallel_size=1, got 2"):
        make_backend(options_for(tiny_folder, lora=LORA, backend="fsdp", parallel=parallel, threads=1))
