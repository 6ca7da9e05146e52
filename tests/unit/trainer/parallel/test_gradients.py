"""Tensor and sequence parallel passes in real processes against one process: columns, gradients, metrics."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.types.records import LossConfig
from support.parallel_passes import Outcome, parallel_batch, rank_pass, save_model, single_pass
from support.ranks import run_ranks

TOLERANCE = 1e-5
"""Largest difference, as a share of the tensor's largest element."""

FULL_LOSS = LossConfig(entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1, temperature=0.8)
SEQUENCE_LOSS = LossConfig(loss_mode="gspo", clip_ratio_low=0.3, clip_ratio_high=0.4)

Models = Any


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Folder of a model with the given sizes."""
    root = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}

    def folder(**sizes: Any) -> Path:
        name = "-".join(map(str, sizes.items()))
        if name not in made:
            made[name] = save_model(root / str(len(made)), **sizes)
        return made[name]

    return folder


@cache
def expected(folder: Path, loss_name: str) -> Outcome:
    return single_pass(folder, _loss(loss_name))


def _loss(name: str) -> LossConfig:
    return {"full": FULL_LOSS, "sequence": SEQUENCE_LOSS, "value": LossConfig(loss_mode="value")}[name]


def check(folder: Path, options: ParallelOptions, loss_name: str = "full", **settings: Any) -> list[Outcome]:
    """Every rank's outcome is the single process's, for its rows."""
    single = expected(folder, loss_name)
    ranks = run_ranks(options.world_size, rank_pass, folder, options, _loss(loss_name), **settings)
    offsets = parallel_batch().ragged("response_ids").offsets
    for rank in ranks:
        tokens = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rank.rows])
        for name, values in single.columns.items():
            assert_close(rank.columns[name], values[tokens], name)
        assert rank.gradients.keys() == single.gradients.keys()
        for name, gradient in single.gradients.items():
            assert_close(rank.gradients[name], gradient, name)
    per_group = ranks[:: options.tensor_parallel * options.sequence_parallel]  # one rank of each data rank
    for name, value in single.metrics.items():
        assert sum(rank.metrics[name] for rank in per_group) == pytest.approx(value, rel=1e-4, abs=1e-6), name
    return ranks


def assert_close(found: Any, wanted: Any, name: str) -> None:
    scale = float(np.abs(wanted).max())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * scale, err_msg=name)


@pytest.mark.parametrize("sizes", [{}, {"tied": False}, {"vocabulary": 257}, {"family": "qwen3"}], ids=str)
def test_tensor_parallel_on_two_ranks(models: Models, sizes: dict[str, Any]) -> None:
    """Tied and untied head, a vocabulary that 2 doesn't divide, and norms of each head's queries and keys."""
    check(models(**sizes), ParallelOptions(2, tensor_parallel=2))


@pytest.mark.parametrize("sizes", [{}, {"family": "qwen3"}], ids=str)
def test_sequence_parallel_on_two_ranks(models: Models, sizes: dict[str, Any]) -> None:
    check(models(**sizes), ParallelOptions(2, sequence_parallel=2))


def test_sequence_parallel_over_more_ranks_than_key_value_heads(models: Models) -> None:
    check(models(heads=4, kv_heads=1), ParallelOptions(4, sequence_parallel=4))


def test_sequence_parallel_where_ranks_do_not_divide_key_value_heads(models: Models) -> None:
    check(models(heads=6, kv_heads=3), ParallelOptions(2, sequence_parallel=2))


@pytest.mark.parametrize(
    "options",
    [
        ParallelOptions(4, tensor_parallel=2),
        ParallelOptions(4, sequence_parallel=2),
        ParallelOptions(4, tensor_parallel=2, sequence_parallel=2),
    ],
    ids=["data2-tensor2", "data2-sequence2", "sequence2-tensor2"],
)
def test_four_ranks_in_two_dimensions(models: Models, options: ParallelOptions) -> None:
    check(models(), options)


def test_a_sequence_level_loss_sees_whole_sequences(models: Models) -> None:
    check(models(), ParallelOptions(2, sequence_parallel=2), "sequence")


@pytest.mark.parametrize("options", [ParallelOptions(2, tensor_parallel=2), ParallelOptions(2, sequence_parallel=2)])
def test_a_critic(models: Models, options: ParallelOptions) -> None:
    check(models(), options, "value")


def test_gradient_checkpointing_repeats_the_exchange(models: Models) -> None:
    single = expected(models(), "full")
    options = ParallelOptions(4, sequence_parallel=2, tensor_parallel=2)
    for rank in run_ranks(4, rank_pass, models(), options, FULL_LOSS, True):
        for name, gradient in single.gradients.items():
            assert_close(rank.gradients[name], gradient, name)
