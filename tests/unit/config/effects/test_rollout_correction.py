"""`algorithm.rollout_correction.*`: log π_old − log π_rollout is −0.9 at each of six tokens, two to a response."""

from __future__ import annotations

import math

import pytest

from argosy.config import Config
from argosy.controller.stages.correction import correct_rollout
from argosy.controller.stages.update import update_config
from argosy.types.batch import TrajectoryBatch
from unit.config.effects.recorded import run_recorded
from unit.config.effects.test_algorithm import scored_batch

KEYS = "algorithm.rollout_correction"


def corrected(job: Config, **values: object) -> TrajectoryBatch:
    batch, _ = correct_rollout(
        job.with_values({f"{KEYS}.{name}": value for name, value in values.items()}), scored_batch()
    )
    return batch


def weights(batch: TrajectoryBatch) -> list[float]:
    return [round(float(value), 5) for value in batch.ragged("rollout_is_weights").values]


def test_rollout_is(job: Config) -> None:
    assert not corrected(job).has("rollout_is_weights")
    token = job.with_values({"algorithm.rollout_correction.rollout_is": "token"})
    assert weights(corrected(token)) == [round(math.exp(-0.9), 5)] * 6
    sequence = job.with_values({"algorithm.rollout_correction.rollout_is": "sequence"})
    assert weights(corrected(sequence)) == [round(math.exp(-1.8), 5)] * 6


def test_rollout_is_threshold(job: Config) -> None:
    changed = job.with_values({"algorithm.rollout_correction.rollout_is_threshold": "0.3"})
    assert weights(corrected(changed, rollout_is="token")) == [0.3] * 6
    band = job.with_values({"algorithm.rollout_correction.rollout_is_threshold": "0.5_2.0"})
    assert weights(corrected(band, rollout_is="token")) == [0.0] * 6


def test_batch_normalize(job: Config) -> None:
    changed = job.with_values({"algorithm.rollout_correction.rollout_is_batch_normalize": True})
    assert weights(corrected(changed, rollout_is="token")) == [1.0] * 6


def test_rollout_rs(job: Config) -> None:
    """Half of (log ratio)² is 0.405."""
    changed = job.with_values({"algorithm.rollout_correction.rollout_rs": "seq_max_k2"})
    assert corrected(changed, rollout_rs_threshold="0.4").ragged("response_mask").values.tolist() == [0] * 6


def test_rollout_rs_threshold(job: Config) -> None:
    changed = job.with_values({"algorithm.rollout_correction.rollout_rs_threshold": "0.41"})
    assert corrected(changed, rollout_rs="seq_max_k2").ragged("response_mask").values.tolist() == [1] * 6


async def test_bypass_mode(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's log-probs are sent as the old ones, and no pass computes them although two epochs would need one."""
    changed = job.with_values({
        "algorithm.rollout_correction.bypass_mode": True, "actor_rollout_ref.actor.ppo_epochs": 2,
        "trainer.val_before_train": False,
    })  # fmt: skip
    recorded = await run_recorded(changed, monkeypatch)
    assert recorded.temperatures["policy"] == []
    batch = recorded.batches[0]
    assert batch.ragged("old_log_probs").values.tolist() == batch.ragged("rollout_log_probs").values.tolist()
    assert recorded.updates[0].loss.loss_mode == "bypass_mode"


def test_loss_type(job: Config) -> None:
    changed = job.with_values({f"{KEYS}.bypass_mode": True, "algorithm.rollout_correction.loss_type": "reinforce"})
    assert update_config(changed).loss.options["loss_type"] == "reinforce"
