"""Tensor and sequence parallel passes in real processes against one process: columns, gradients, metrics."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.modeling.packing import pack
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig
from support.parallel_passes import (
    Outcome,
    Pass,
    checks_with_errors,
    parallel_batch,
    rank_passes,
    save_model,
    saved_bytes,
    single_pass,
)
from support.ranks import run_ranks

TOLERANCE = 1e-5
"""Largest difference, as a share of the tensor's largest element."""

LOSSES = {
    "full": LossConfig(entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1, temperature=0.8),
    "sequence": LossConfig(loss_mode="gspo", clip_ratio_low=0.3, clip_ratio_high=0.4),
    "value": LossConfig(loss_mode="value"),
}

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
def expected(folder: Path, loss: str) -> Outcome:
    return single_pass(folder, LOSSES[loss])


def check(options: ParallelOptions, *cases: tuple[Path, str], **settings: Any) -> None:
    """Every rank's outcome is the single process's, for its rows. A case is a model and a loss."""
    passes = [Pass(folder, LOSSES[loss], **settings) for folder, loss in cases]
    by_rank = run_ranks(options.world_size, rank_passes, options, passes)
    for place, (folder, loss) in enumerate(cases):
        compare([outcomes[place] for outcomes in by_rank], expected(folder, loss), options)


def compare(ranks: list[Outcome], single: Outcome, options: ParallelOptions) -> None:
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
        if not name.startswith("training/"):  # of a rank's own rows
            assert sum(rank.metrics[name] for rank in per_group) == pytest.approx(value, rel=1e-4, abs=1e-6), name


def assert_close(found: Any, wanted: Any, name: str) -> None:
    scale = float(np.abs(wanted).max())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * scale, err_msg=name)


def test_tensor_parallel(models: Models) -> None:
    """Tied and untied head, a vocabulary that 2 doesn't divide, norms of each head's queries and keys, a critic."""
    cases = [(models(**sizes), "full") for sizes in ({}, {"tied": False}, {"vocabulary": 257}, {"family": "qwen3"})]
    check(ParallelOptions(2, tensor_parallel=2), *cases, (models(), "value"))


def test_sequence_parallel(models: Models) -> None:
    """One key-value head for each rank, three for two ranks, a loss over whole sequences, a critic."""
    cases = [(models(), "full"), (models(heads=6, kv_heads=3), "full"), (models(), "sequence"), (models(), "value")]
    check(ParallelOptions(2, sequence_parallel=2), *cases)


def test_more_sequence_ranks_than_key_value_heads(models: Models) -> None:
    check(ParallelOptions(4, sequence_parallel=4), (models(heads=4, kv_heads=1), "full"))


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
    """With gradient checkpointing, which repeats the exchanges, and activations on their way through main memory."""
    check(options, (models(), "full"), checkpointing=True, offload=True)


@pytest.mark.parametrize("options", [ParallelOptions(2, tensor_parallel=2), ParallelOptions(2, sequence_parallel=2)])
def test_activation_offload_of_whole_layers(models: Models, options: ParallelOptions) -> None:
    check(options, (models(family="qwen3"), "full"), offload=True)


def test_every_rank_refuses_a_division_that_changes_numbers(models: Models) -> None:
    said = {0.0: "", 0.01: "by 0.01 (allowed 0.001)", float("nan"): "by nan"}
    for found in run_ranks(2, checks_with_errors, models(), ParallelOptions(2, tensor_parallel=2), list(said)):
        for message, words in zip(found, said.values(), strict=True):
            assert bool(message) == bool(words)
            assert words in message


def test_sequence_parallel_divides_activations(models: Models) -> None:
    """Of long responses; what doesn't shrink is small: columns of one number per token."""
    rows = Ragged.from_rows([np.arange(3, 200)] * 4, np.int32)
    packed = pack(Ragged.from_rows([[5, 6]] * 4, np.int32), rows)
    alone = saved_bytes(models(), packed)
    found = run_ranks(4, saved_bytes, models(), packed, 4)
    assert max(found) < 0.29 * alone, (found, alone)
