"""Every policy loss on real ranks gives the loss, metrics and gradient that it gives in one process (cases B4 and E1).

Rows go to ranks by cost and are cut into micro-batches there; sequence and tensor parallel ranks share single rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from argosy.algorithms.losses import LOSSES
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends import Backend, make_backend
from argosy.trainer.computing import Closable
from argosy.trainer.objective import global_normalizer
from argosy.trainer.options import OptimizerOptions, TrainerOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.ranks.backend import with_ranks
from argosy.trainer.schedule import Schedule
from argosy.trainer.selection import with_mini_batch_column
from argosy.types.batch import TrajectoryBatch
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig
from support.training import grouped_batch, options_for

pytestmark = pytest.mark.xdist_group("backends")

FORMS: dict[str, Callable[[TrainerOptions], TrainerOptions]] = {
    "data": lambda options: with_ranks(options, "fsdp", 2),
    "sequence": lambda options: dataclasses.replace(
        options, backend="fsdp", parallel=ParallelOptions(2, sequence_parallel=2)
    ),
}

OPTIONS: dict[str, dict[str, float | str | bool]] = {
    "clip_cov": {"clip_cov_ratio": 0.2, "clip_cov_lb": -1.0, "clip_cov_ub": 50.0},
    "kl_cov": {"kl_cov_ratio": 0.2},
    "bypass_mode": {
        "loss_type": "reinforce",
        "rollout_is": "sequence",
        "rollout_is_batch_normalize": True,
        "rollout_rs": "seq_max_k2",
        "rollout_rs_threshold": "2.0",
    },
}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TrainerOptions:
    folder: Path = save_tiny_model(tmp_path_factory.mktemp("losses") / "tiny", weight_scale=3.0)
    limit = MicroBatchLimit(max_tokens=60)
    return options_for(
        folder,
        threads=1,
        optimizer=OptimizerOptions(Schedule(1e-3)),
        update_limit=limit,
        log_prob_limit=limit,
    )


@pytest.fixture(scope="module")
def alone(options: TrainerOptions) -> Backend:
    return make_backend(options)


@pytest.fixture(scope="module", params=FORMS)
def ranks(request: pytest.FixtureRequest, options: TrainerOptions) -> Iterator[Backend]:
    backend = make_backend(FORMS[request.param](options))
    yield backend
    assert isinstance(backend, Closable)
    backend.close()


def batch_near(backend: Backend) -> TrajectoryBatch:
    """Old log-probs near the model's own, so that some ratios are clipped and some are not."""
    batch = grouped_batch(seed=3)
    own = backend.evaluate(batch, ["log_probs"], 1.0, lambda: False).ragged("log_probs")
    noise = np.random.default_rng(3).normal(0, 0.4, len(own.values))
    old = np.minimum(own.values + noise, -1e-3).astype(np.float32)
    return batch.with_column("old_log_probs", Ragged(old, own.offsets))


def computed(backend: Backend, batch: TrajectoryBatch, loss: LossConfig) -> dict[str, float]:
    """Metrics of a forward_backward and the gradient's norm; the learning rate is 0."""

    def log_probs(part: TrajectoryBatch, temperature: float) -> Ragged:
        return backend.evaluate(part, ["log_probs"], temperature, lambda: False).ragged("log_probs")

    whole = with_mini_batch_column(batch, loss, log_probs, (0, 0), fresh=False)
    metrics = backend.forward_backward(whole, loss, global_normalizer(batch))
    return metrics | {"norm": backend.optim_step(0.0).grad_norm}


@pytest.mark.parametrize("mode", LOSSES)
def test_ranks_compute_what_one_process_does(alone: Backend, ranks: Backend, mode: str) -> None:
    batch, loss = batch_near(alone), LossConfig(mode, options=OPTIONS.get(mode, {}))
    expected, found = (computed(backend, batch, loss) for backend in (alone, ranks))
    assert expected["norm"] > 0
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-4, abs=1e-5), name
