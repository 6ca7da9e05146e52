from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from argosy.config import Config
from argosy.modeling.loading import ModelSource
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.tiny import save_tiny_model
from argosy.reference.build import build_core
from argosy.reference.core import ReferenceModel, ReferenceOptions
from argosy.roles.reference import Reference
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import TrainerOptions
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import DeadlineError, InvalidInputError
from argosy.types.ids import SampleId

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", weight_scale=3.0)


def reference_over(folder: Path, dtype: str = "float32") -> ReferenceModel:
    source = ModelSource(str(folder), dtype=dtype, device="cpu")
    return ReferenceModel(ReferenceOptions(source, log_prob_chunk_tokens=9, limit=MicroBatchLimit(max_sequences=2)))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[ReferenceModel]:
    made = reference_over(folder)
    yield made
    made.close()


def batch_of(count: int = 7) -> TrajectoryBatch:
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, 200, 5).tolist()
    responses = [rng.integers(3, 200, length).tolist() for length in rng.integers(0, 12, count)]
    return TrajectoryBatch.build([SampleId(0, 0, k) for k in range(count)], [prompt] * count, responses)


def test_it_is_a_reference(reference: ReferenceModel) -> None:
    role: Reference = reference
    assert role is not None


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
async def test_b8_reference_and_untrained_policy_agree_at_any_temperature(
    reference: ReferenceModel, folder: Path, temperature: float
) -> None:
    trainer = Trainer(TrainerOptions(ModelSource(str(folder), device="cpu")), make_backend)
    batch, columns = batch_of(), ["log_probs", "entropy", "sum_pi_squared"]
    ours = await reference.compute_log_probs(batch, columns, temperature=temperature, deadline_s=60)
    theirs = await trainer.compute_log_probs(batch, columns, temperature=temperature, deadline_s=60)
    trainer.close()
    assert ours.sample_ids == theirs.sample_ids == batch.sample_ids
    for name in columns:
        np.testing.assert_allclose(ours.ragged(name).values, theirs.ragged(name).values, atol=1e-5)
    assert np.ptp(ours.ragged("log_probs").values) > 0.1


async def test_a_bfloat16_reference_is_near(reference: ReferenceModel, folder: Path) -> None:
    rough = reference_over(folder, "bfloat16")
    batch = batch_of()
    found = await rough.compute_log_probs(batch, ["log_probs"], temperature=1.0, deadline_s=60)
    exact = await reference.compute_log_probs(batch, ["log_probs"], temperature=1.0, deadline_s=60)
    rough.close()
    difference = np.abs(found.ragged("log_probs").values - exact.ragged("log_probs").values)
    assert 0 < difference.max() < 0.5


async def test_frozen_and_bounded(reference: ReferenceModel) -> None:
    assert not any(parameter.requires_grad for parameter in reference._model.model.parameters())
    with pytest.raises(DeadlineError):
        await reference.compute_log_probs(batch_of(400), ["log_probs"], temperature=1.0, deadline_s=0.001)
    with pytest.raises(InvalidInputError, match="unknown column"):
        await reference.compute_log_probs(batch_of(), ["logits"], temperature=1.0, deadline_s=60)


async def test_built_from_the_configuration(folder: Path) -> None:
    cfg = Config().with_values(
        {
            "actor_rollout_ref.model.path": str(folder),
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 3,
            "argosy.reference.device": "cpu",
            "argosy.reference.dtype": "bfloat16",
            "argosy.reference.log_prob_chunk_tokens": 5,
        }
    )
    core = build_core(cfg)
    assert core._options.limit == MicroBatchLimit(max_sequences=3)
    assert core._model.compute_dtype == torch.bfloat16
    found = await core.compute_log_probs(batch_of(), ["log_probs"], temperature=1.0, deadline_s=60)
    core.close()
    assert len(found) == 7
