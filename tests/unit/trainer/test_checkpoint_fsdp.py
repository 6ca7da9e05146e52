"""Checkpoints over real FSDP ranks: 1 → 2 → 1 goes on as one process would, and a save doesn't stop training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from argosy.trainer.backends import make_backend
from argosy.trainer.objective import global_normalizer
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig
from support.training import grouped_batch, options_for

pytestmark = pytest.mark.xdist_group("checkpoint-fsdp")

TOLERANCE = 2e-4
"""Adam's first steps turn rounding in a gradient near 0 into a step of the learning rate at most."""


def steps(backend: Any, *seeds: int) -> None:
    for seed in seeds:
        batch = grouped_batch(seed=seed)
        backend.forward_backward(batch, LossConfig(), global_normalizer(batch))
        backend.optim_step(1e-3)


def tensors(backend: Any) -> dict[str, torch.Tensor]:
    state = backend.state()
    return {name: tensor.clone() for name, tensor in [*state.model.items(), *state.optimizer.items()]}


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.fixture(scope="module")
def two_ranks(tiny_folder: Path) -> Iterator[Any]:
    parallel = ParallelOptions(world_size=2)
    backend = make_backend(options_for(tiny_folder, backend="fsdp", parallel=parallel, threads=1))
    yield backend
    backend.close()


def test_e5_one_to_two_to_one_goes_on_as_one(tiny_folder: Path, tmp_path: Path, two_ranks: Any) -> None:
    """Weights, moments, step counts and counters; the unbroken run beside it."""
    unbroken, last = make_backend(options_for(tiny_folder)), make_backend(options_for(tiny_folder))
    steps(unbroken, 0, 1)
    unbroken.start_save(tmp_path / "one", 2).result(60)
    at_two = tensors(unbroken)
    assert two_ranks.load_checkpoint(tmp_path / "one") == 2
    assert largest_difference(tensors(two_ranks), at_two) == 0.0, "loading computes nothing"

    steps(two_ranks, 2)
    saving = two_ranks.start_save(tmp_path / "two", 3)
    at_three = tensors(two_ranks)
    steps(two_ranks, 3)  # while it is written
    saving.result(60)
    assert largest_difference(tensors(two_ranks), at_three) > 0
    assert last.load_checkpoint(tmp_path / "two") == 3
    assert largest_difference(tensors(last), at_three) == 0.0, "what was trained meanwhile isn't in it"
    steps(unbroken, 2, 3)
    steps(last, 3)
    assert largest_difference(tensors(last), tensors(unbroken)) < TOLERANCE
    halves = [load_file(tmp_path / "two" / f"model-0000{rank}-of-00002.safetensors") for rank in (1, 2)]
    sizes = [sum(tensor.numel() for tensor in half.values()) for half in halves]
    assert max(sizes) < 1.1 * min(sizes), "each rank writes its share"

    two_ranks.model_for_export().save_pretrained(tmp_path / "hf", max_shard_size="100KB")
    assert len(list((tmp_path / "hf").glob("model-*.safetensors"))) > 1
    for backend in (unbroken, last):
        backend.close()


def test_h5_a_checkpoint_of_another_model_is_refused_by_all_ranks_and_they_go_on(
    tmp_path: Path, two_ranks: Any
) -> None:
    from argosy.modeling.tiny import save_tiny_model

    other = make_backend(options_for(save_tiny_model(tmp_path / "wide", hidden_size=32)))
    other.start_save(tmp_path / "other", 0).result(60)
    other.close()
    before = tensors(two_ranks)
    with pytest.raises(InvalidInputError, match="of another model"):
        two_ranks.load_checkpoint(tmp_path / "other")
    assert largest_difference(tensors(two_ranks), before) == 0.0
    steps(two_ranks, 0)
