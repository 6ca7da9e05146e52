"""The single backend on compiled layers: gradients, steps, and memory that is given back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from argosy.algorithms.values import LOSS_MODE
from argosy.modeling.loading import ModelSource
from argosy.modeling.native.library import load_library
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends.single import SingleProcessBackend
from argosy.trainer.objective import global_normalizer
from argosy.trainer.options import TrainerOptions
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs a C++ compiler and a CPU with AMX")

LENGTHS = [(5, 7), (5, 9), (3, 12), (3, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("native") / "model", hidden_size=64, head_count=2, kv_head_count=1)


def batch() -> TrajectoryBatch:
    draw = np.random.default_rng(0)
    responses = [draw.integers(3, 250, length).tolist() for _, length in LENGTHS]
    ones, slopes = [[1] * len(row) for row in responses], [[float(draw.normal())] * len(row) for row in responses]
    return TrajectoryBatch.build(
        [SampleId(0, number, 0) for number in range(len(LENGTHS))],
        [list(range(3, 3 + length)) for length, _ in LENGTHS],
        responses,
        ones,
        advantages=Ragged.from_rows(slopes, np.float32),
        returns=Ragged.from_rows(slopes, np.float32),
    )


def backend(folder: Path, native: bool, critic: bool) -> SingleProcessBackend:
    source = ModelSource(str(folder), device="cpu")
    options = TrainerOptions(
        source, compute_dtype="bfloat16", gradient_checkpointing=True, native_kernels=native, value_head=critic
    )
    return SingleProcessBackend(options)


@pytest.mark.parametrize("critic", [False, True])
def test_a_policy_and_a_critic_get_the_same_gradients(folder: Path, critic: bool) -> None:
    loss = LossConfig(loss_mode=LOSS_MODE) if critic else LossConfig()
    found: list[dict[str, Tensor]] = []
    for native in (True, False):
        each = backend(folder, native, critic)
        for _ in range(2):
            each.forward_backward(batch(), loss, global_normalizer(batch()))
        gradients = {name: parameter.grad for name, parameter in each._parameters.items()}
        found.append({name: gradient.clone() for name, gradient in gradients.items() if gradient is not None})
        assert not each.optim_step(1e-3).skipped
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[1].items():
        assert float((found[0][name] - gradient).norm()) <= 0.03 * float(gradient.norm()), name


def test_offload_gives_the_workspace_back(folder: Path) -> None:
    each = backend(folder, True, False)
    each.forward_backward(batch(), LossConfig(), global_normalizer(batch()))
    assert each._workspace.size > 0
    each.offload()
    assert each._workspace.size == 0
    each.onload()
    each.forward_backward(batch(), LossConfig(), global_normalizer(batch()))
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in each._parameters.values())  # type: ignore[arg-type]
