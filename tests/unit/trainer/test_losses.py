"""Every policy loss through the trainer: at ratio 1, over micro-batches and ranks, with whole mini-batches' columns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argosy.algorithms.losses import LOSSES
from argosy.algorithms.losses.mini_batch import COLUMN
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.core import Trainer
from argosy.trainer.objective import ZERO_AT_ZERO_ADVANTAGE, global_normalizer
from argosy.trainer.selection import with_mini_batch_column
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig, UpdateConfig
from support.training import grouped_batch, mutation, with_own_log_probs

OPTIONS: dict[str, dict[str, float | str | bool]] = {
    "clip_cov": {"clip_cov_ratio": 0.2, "clip_cov_lb": -1.0, "clip_cov_ub": 50.0},
    "kl_cov": {"kl_cov_ratio": 0.2},
    "bypass_mode": {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_batch_normalize": True},
}
"""So that even a tiny mini-batch has tokens that are chosen."""


def loss_of(mode: str, **fields: Any) -> LossConfig:
    return LossConfig(loss_mode=mode, options=OPTIONS.get(mode, {}), **fields)


def weights(trainer: Trainer) -> torch.Tensor:
    model = trainer._backend.model_for_export()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).clone()


def off_policy(seed: int = 0) -> TrajectoryBatch:
    """Old log-probs that differ from any model's, as after some steps."""
    batch = grouped_batch(seed=seed)
    offsets = batch.ragged("response_ids").offsets
    old = np.random.default_rng(seed).normal(-5, 0.7, offsets[-1]).astype(np.float32)
    return batch.with_column("old_log_probs", Ragged(old, offsets))


async def test_b10_the_ratio_is_one_before_the_first_update_for_every_loss(make_trainer: Any, tmp_path: Path) -> None:
    """Dropout 0.1, responses of 5 and 9 tokens, no optimizer step, micro-batches of one and of two."""
    folder = save_tiny_model(tmp_path / "m", attention_dropout=0.1, weight_scale=3.0)
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, 250, length).tolist() for length in (5, 9)]
    advantages = Ragged.from_rows([[0.5] * 5, [-1.0] * 9], np.float32)
    samples = [SampleId(0, 0, k) for k in range(2)]
    plain = TrajectoryBatch.build(samples, [[7, 8, 9]] * 2, rows, advantages=advantages)
    for size in (1, 2):
        trainer = make_trainer(folder, update_limit=MicroBatchLimit(max_sequences=size))
        batch = await with_own_log_probs(trainer, plain)
        batch = batch.with_column("ref_log_probs", batch.ragged("old_log_probs"))
        for mode in LOSSES:
            loss = LossConfig(loss_mode=mode, use_kl_loss=True, kl_loss_type="k1", options={})
            if mode == "clip_cov":
                loss = dataclasses.replace(loss, options={"clip_cov_lb": 900.0, "clip_cov_ub": 999.0})  # none is drawn
            answer = await trainer.forward_backward(batch, loss, global_normalizer(batch), mutation())
            assert abs(answer.metrics["actor/ppo_kl"]) < 1e-5, mode
            assert abs(answer.metrics["actor/kl_loss"]) < 1e-5, mode
            assert answer.metrics["actor/pg_clipfrac"] == answer.metrics["actor/pg_clipfrac_lower"] == 0.0, mode
        again = await trainer.compute_log_probs(batch, ["log_probs"], temperature=1.0, deadline_s=60)
        gap = again.ragged("log_probs").values - batch.ragged("old_log_probs").values
        assert np.abs(gap).max() < 1e-5


@pytest.mark.parametrize("mode", LOSSES)
async def test_b4_weights_do_not_depend_on_the_cut(make_trainer: Any, mode: str) -> None:
    """Two optimizer steps and two passes over the batch: micro-batches of one sequence, or of all."""
    batch = off_policy()
    config = UpdateConfig(loss_of(mode, clip_ratio_low=0.9, clip_ratio_high=9.0), 6, ppo_epochs=2, shuffle=True, seed=3)
    found, metrics = [], []
    for size in (1, 12):
        trainer = make_trainer(update_limit=MicroBatchLimit(max_sequences=size))
        before = weights(trainer)
        answer = await trainer.update(batch, config, mutation())
        found.append(weights(trainer) - before)
        metrics.append(answer.metrics)
    # Adam's first step is the gradient's sign: a parameter whose gradient is rounding noise may go either way.
    assert found[0].abs().max() > 0
    different = (found[0] - found[1]).abs() > 1e-5
    assert different.float().mean() < 1e-3
    for name in ("actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("mode", ["clip_cov", "kl_cov"])
async def test_ranks_that_carry_the_column_add_up(make_trainer: Any, mode: str) -> None:
    """Each half of the mini-batch with the column that was made from all of it."""
    batch, loss = off_policy(1), loss_of(mode)
    trainer = make_trainer()
    normalizer = global_normalizer(batch)
    whole = await trainer.forward_backward(batch, loss, normalizer, mutation())
    marked = with_mini_batch_column(batch, loss, trainer._log_probs, (0, 0), fresh=False)
    assert 0 < marked.ragged(COLUMN).values.sum() < normalizer.token_count
    halves = [np.arange(0, 12, 2), np.arange(1, 12, 2)]
    parts = [await trainer.forward_backward(marked.select(rows), loss, normalizer, mutation()) for rows in halves]
    for name in ("actor/pg_loss", "actor/cov_fraction", "actor/ppo_kl"):
        assert sum(part.metrics[name] for part in parts) == pytest.approx(whole.metrics[name], rel=1e-4, abs=1e-6)
    assert whole.metrics["actor/cov_fraction"] == pytest.approx(
        marked.ragged(COLUMN).values.sum() / normalizer.token_count
    )


@pytest.mark.parametrize("mode", ["clip_cov", "kl_cov"])
async def test_a_part_without_the_column_is_refused_with_the_numbers(make_trainer: Any, mode: str) -> None:
    batch = off_policy()
    part, normalizer = batch.select(range(6)), global_normalizer(batch)
    counts = rf"has {part.ragged('response_mask').values.sum()} of its {normalizer.token_count:g} trained tokens"
    with pytest.raises(InvalidInputError, match=counts):
        await make_trainer().forward_backward(part, loss_of(mode), normalizer, mutation())


class Passes:
    """A forward pass that counts how often it is asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, batch: TrajectoryBatch, temperature: float) -> Ragged:
        self.count += 1
        offsets = batch.ragged("response_ids").offsets
        return Ragged(np.linspace(-4, -1, offsets[-1], dtype=np.float32), offsets)


@pytest.mark.parametrize(
    ("case", "mode", "fresh", "expected"),
    [
        ("at the weights of the old log-probs they are taken", "kl_cov", True, 0),
        ("after a step a pass is needed", "kl_cov", False, 1),
        ("old log-probs of the engine are not the trainer's", "rollout kl_cov", True, 1),
        ("without old log-probs a pass is needed", "bare kl_cov", True, 1),
        ("other losses need nothing", "vanilla", False, 0),
    ],
)
def test_a_pass_only_where_it_is_needed(case: str, mode: str, fresh: bool, expected: int) -> None:
    batch, passes = off_policy(), Passes()
    if mode.startswith("rollout"):
        batch = batch.with_column("rollout_log_probs", batch.ragged("old_log_probs"))
    if mode.startswith("bare"):
        batch = TrajectoryBatch(batch.table.drop_columns(["old_log_probs"]))
    loss = loss_of(mode.rpartition(" ")[2])
    found = with_mini_batch_column(batch, loss, passes, (0, 0), fresh=fresh)
    assert passes.count == expected, case
    assert found.has(COLUMN) == (loss.loss_mode != "vanilla")
    assert with_mini_batch_column(found, loss, passes, (0, 0), fresh=False) is found


def test_the_column_belongs_to_samples_whatever_their_order() -> None:
    batch = off_policy()
    order = np.random.default_rng(1).permutation(12)
    columns = []
    for arranged in (batch, batch.select(order)):
        found = with_mini_batch_column(arranged, loss_of("clip_cov"), Passes(), (3, 1), fresh=True)
        rows = zip(found.sample_ids, found.ragged(COLUMN), strict=True)
        columns.append({str(sample): row.tolist() for sample, row in rows})
    assert columns[0] == columns[1]
    assert any(any(row) for row in columns[0].values())


async def test_bypass_mode_refuses_a_batch_without_old_log_probs(make_trainer: Any) -> None:
    batch = grouped_batch()
    config = UpdateConfig(LossConfig(loss_mode="bypass_mode"), 12)
    with pytest.raises(InvalidInputError, match="no column 'old_log_probs', which this loss needs"):
        await make_trainer().update(batch, config, mutation())


async def test_rollout_weights_multiply_the_policy_loss_alone(make_trainer: Any) -> None:
    """Weights of 2 double it; KL stays; NaN at masked tokens reaches nothing."""
    batch = off_policy()
    mask = batch.ragged("response_mask")
    batch = batch.with_column("ref_log_probs", batch.ragged("old_log_probs"))
    twice = np.where(mask.values, 2.0, np.nan).astype(np.float32)
    weighted = batch.with_column("rollout_is_weights", Ragged(twice, mask.offsets))
    loss, normalizer = LossConfig(use_kl_loss=True), global_normalizer(batch)
    trainer = make_trainer()
    plain = await trainer.forward_backward(batch, loss, normalizer, mutation())
    found = await trainer.forward_backward(weighted, loss, normalizer, mutation())
    assert found.metrics["actor/pg_loss"] == pytest.approx(2 * plain.metrics["actor/pg_loss"], rel=1e-5)
    assert found.metrics["actor/kl_loss"] == pytest.approx(plain.metrics["actor/kl_loss"], rel=1e-6)
    gradients = [parameter.grad for parameter in trainer._backend.model_for_export().parameters()]
    assert all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)


def test_the_modes_without_a_penalty_are_those_that_skip_rows() -> None:
    assert frozenset(LOSSES) - {"kl_cov", "dro"} == ZERO_AT_ZERO_ADVANTAGE


@pytest.mark.parametrize("mode", LOSSES)
async def test_h9_nan_is_shown_skipped_and_counted_for_every_loss(make_trainer: Any, mode: str) -> None:
    batch = off_policy()
    advantages = batch.ragged("advantages")
    poisoned = batch.with_column("advantages", Ragged(np.full_like(advantages.values, np.nan), advantages.offsets))
    trainer = make_trainer()
    before = weights(trainer)
    answer = await trainer.update(poisoned, UpdateConfig(loss_of(mode), 12), mutation())
    assert np.isnan(answer.metrics["actor/pg_loss"])
    assert np.isnan(answer.metrics["actor/grad_norm"])
    assert answer.metrics["actor/skipped_steps"] == 1
    assert torch.equal(weights(trainer), before)
