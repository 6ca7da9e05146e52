"""The megatron backend against the one-process backend: the same numbers, over one rank and over two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argosy.trainer.backends.base import Backend
from argosy.trainer.backends.single import SingleProcessBackend
from argosy.trainer.objective import global_normalizer
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.ranks.backend import RankedBackend
from argosy.types.records import LossConfig
from support.training import grouped_batch, options_for

pytest.importorskip("megatron.core", reason="megatron-core is an extra")

LAYOUTS = {
    "one rank": ParallelOptions(),
    "tensor parallel 2": ParallelOptions(world_size=2, tensor_parallel=2),
    "data parallel 2": ParallelOptions(world_size=2),
}
RATE = 1e-3
COLUMNS = ("log_probs", "entropy", "sum_pi_squared")


@pytest.fixture(scope="module", params=list(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> ParallelOptions:
    return LAYOUTS[request.param]


@pytest.fixture(scope="module")
def backends(layout: ParallelOptions, tiny_folder: Path) -> Iterator[tuple[Backend, Backend]]:
    """(megatron, single) after one step on the same batch."""
    with ExitStack() as stack:
        found: list[Any] = [
            RankedBackend(options_for(tiny_folder, backend="megatron", parallel=layout)),
            SingleProcessBackend(options_for(tiny_folder)),
        ]
        for backend in found:
            stack.callback(backend.close)
        yield found[0], found[1]


def step(backend: Backend, seed: int) -> tuple[Mapping[str, float], Any]:
    batch = grouped_batch(seed=seed, group_count=5)
    shares = backend.forward_backward(batch, LossConfig(), global_normalizer(batch))
    return shares, backend.optim_step(RATE)


def test_steps_are_those_of_one_process(backends: tuple[Backend, Backend]) -> None:
    for seed in range(3):
        (shares, outcome), (expected_shares, expected) = (step(backend, seed) for backend in backends)
        assert outcome.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
        assert shares["actor/pg_loss"] == pytest.approx(expected_shares["actor/pg_loss"], abs=1e-6)
    (weights, tied), (expected_weights, expected_tied) = (backend.weights() for backend in backends)
    assert tied == expected_tied
    assert weights.keys() == expected_weights.keys()
    for name, tensor in expected_weights.items():
        difference = (weights[name] - tensor).abs()
        # AdamW divides rounding by itself where a gradient is nearly 0: single weights may differ by part of the rate.
        assert float(difference.max()) < 0.2 * RATE, name
        assert float(difference.mean()) < 1e-3 * RATE, name


def test_log_probs_are_those_of_one_process(backends: tuple[Backend, Backend]) -> None:
    batch = grouped_batch(seed=9, group_count=4)
    found, expected = (backend.evaluate(batch, COLUMNS, 0.8, lambda: False) for backend in backends)
    assert found.sample_ids == expected.sample_ids
    for column in COLUMNS:
        np.testing.assert_allclose(found.ragged(column).values, expected.ragged(column).values, atol=2e-4)


def test_a_checkpoint_is_any_backends(backends: tuple[Backend, Backend], tmp_path: Path) -> None:
    ours, single = backends
    ours.start_save(tmp_path / "ours", 3).result(60)
    assert single.load_checkpoint(tmp_path / "ours") == 3
    step(single, 20)
    step(ours, 20)
    single.start_save(tmp_path / "theirs", 4).result(60)
    step(ours, 21)
    assert ours.load_checkpoint(tmp_path / "theirs") == 4
    (weights, _), (expected, _) = (backend.weights() for backend in backends)
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name
    outcomes = [step(backend, 22)[1].grad_norm for backend in backends]
    assert outcomes[0] == pytest.approx(outcomes[1], rel=1e-5)
