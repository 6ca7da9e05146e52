from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.tiny import save_tiny_model
from argosy.roles.policy import Policy
from argosy.trainer.core import Trainer
from argosy.trainer.minibatch import mini_batches
from argosy.trainer.objective import global_normalizer
from argosy.trainer.options import OptimizerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import DeadlineError, InternalError, InvalidInputError, StateError, StepMismatchError
from argosy.types.ragged import Ragged
from argosy.types.records import GlobalNormalizer, LossConfig, UpdateConfig
from support.training import grouped_batch, mutation, with_own_log_probs

ONE_STEP = UpdateConfig(LossConfig(), mini_batch_size=12)


def weights(trainer: Trainer) -> torch.Tensor:
    model = trainer._backend.model_for_export()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).clone()


def test_it_is_a_policy(make_trainer: Any) -> None:
    policy: Policy = make_trainer()
    assert policy is not None


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("checkpointing", [True, False])
async def test_b10_the_ratio_is_one_before_the_first_step(
    make_trainer: Any, tmp_path: Path, temperature: float, checkpointing: bool
) -> None:
    """Dropout 0.1 in the config, other micro-batches for old and new log-probs, temperature 0.5 too (case B8)."""
    folder = save_tiny_model(tmp_path / "m", attention_dropout=0.1, weight_scale=3.0)
    trainer = make_trainer(
        folder,
        gradient_checkpointing=checkpointing,
        log_prob_limit=MicroBatchLimit(max_sequences=1),
        update_limit=MicroBatchLimit(max_sequences=5),
    )
    batch = await with_own_log_probs(trainer, grouped_batch(), temperature)
    batch = batch.with_column("ref_log_probs", batch.ragged("old_log_probs"))
    loss = LossConfig(temperature=temperature, use_kl_loss=True, kl_loss_type="k3")
    answer = await trainer.forward_backward(batch, loss, global_normalizer(batch), mutation())
    assert abs(answer.metrics["actor/ppo_kl"]) < 1e-6
    assert abs(answer.metrics["actor/kl_loss"]) < 1e-8
    assert answer.metrics["actor/pg_clipfrac"] == 0.0
    other = await trainer.compute_log_probs(batch, ["log_probs"], temperature=temperature, deadline_s=60)
    assert np.abs(other.ragged("log_probs").values - batch.ragged("old_log_probs").values).max() < 1e-5


async def test_b8_a_forgotten_temperature_would_be_seen(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch(), temperature=1.0)
    loss = LossConfig(temperature=0.5)
    answer = await trainer.forward_backward(batch, loss, global_normalizer(batch), mutation())
    assert abs(answer.metrics["actor/ppo_kl"]) > 0.1


async def test_an_update_without_old_log_probs_equals_one_with_its_own(make_trainer: Any) -> None:
    """They are the same numbers, so the extra forward pass can be saved; only for a single optimizer step."""
    first, second = make_trainer(), make_trainer()
    batch = grouped_batch()
    with_old = await with_own_log_probs(first, batch)
    one = await first.update(with_old, ONE_STEP, mutation())
    other = await second.update(batch, ONE_STEP, mutation())
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=1e-6)
    assert one.metrics["actor/pg_loss"] == pytest.approx(other.metrics["actor/pg_loss"], abs=1e-6)
    with pytest.raises(InvalidInputError, match="update of 2 optimizer steps needs the column 'old_log_probs'"):
        await second.update(batch, dataclasses.replace(ONE_STEP, mini_batch_size=6), mutation())


async def test_training_raises_the_probability_of_what_was_good(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = grouped_batch()
    before = await with_own_log_probs(trainer, batch)
    config = UpdateConfig(LossConfig(), mini_batch_size=6, ppo_epochs=2)
    for step in range(3):
        answer = await trainer.update(before, config, mutation(step))
        assert answer.step == step + 1
        assert answer.metrics["actor/optimizer_steps"] == 4
        assert answer.metrics["actor/trained_tokens"] == 2 * before.ragged("response_mask").values.sum()
    after = await with_own_log_probs(trainer, batch)
    gain = after.ragged("old_log_probs").values - before.ragged("old_log_probs").values
    trained = before.ragged("response_mask").values == 1
    good = before.ragged("advantages").values > 0
    assert gain[trained & good].mean() > 0.05
    assert gain[trained & ~good].mean() < -0.05


async def test_b12_the_stop_token_is_trained_once_though_it_is_the_pad_token(make_trainer: Any, tmp_path: Path) -> None:
    """pad = eos = 2: prompt [5, 2, 6], response [7, 8, 2]; three trained tokens, the last of them the EOS."""
    folder = save_tiny_model(tmp_path / "m", weight_scale=3.0)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"pad_token_id": 0', '"pad_token_id": 2'))
    trainer = make_trainer(folder, rate=1e-2)
    ids = grouped_batch(1, 1).sample_ids
    advantages = Ragged.from_rows([[0.0, 0.0, 1.0]], np.float32)
    batch = TrajectoryBatch.build(ids, [[5, 2, 6]], [[7, 8, 2]], advantages=advantages)
    before = await with_own_log_probs(trainer, batch)
    answer = await trainer.update(batch, ONE_STEP, mutation())
    after = await with_own_log_probs(trainer, batch)
    assert answer.metrics["actor/trained_tokens"] == 3
    gain = after.ragged("old_log_probs").values - before.ragged("old_log_probs").values
    assert gain[2] > 0.1
    assert answer.metrics["actor/grad_norm"] > 0


async def test_the_order_of_rows_changes_nothing(make_trainer: Any) -> None:
    first, second = make_trainer(), make_trainer()
    batch = await with_own_log_probs(first, grouped_batch())
    shuffled = batch.select(np.random.default_rng(0).permutation(len(batch)))
    config = UpdateConfig(LossConfig(), mini_batch_size=5, ppo_epochs=2, shuffle=True, seed=7)
    await first.update(batch, config, mutation())
    await second.update(shuffled, config, mutation())
    assert torch.equal(weights(first), weights(second))


def test_mini_batches_cover_every_row_once_per_epoch_keyed_by_seed_step_and_epoch() -> None:
    batch = grouped_batch()
    config = UpdateConfig(LossConfig(), mini_batch_size=5, ppo_epochs=2, shuffle=True, seed=1)
    plan = list(mini_batches(batch, config, step=3))
    assert [len(rows) for rows in plan] == [5, 5, 2] * 2
    epochs = [np.concatenate(plan[:3]).tolist(), np.concatenate(plan[3:]).tolist()]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0] != epochs[1]
    again = [rows.tolist() for rows in mini_batches(batch, config, step=3)]
    assert again == [rows.tolist() for rows in plan]
    assert again != [rows.tolist() for rows in mini_batches(batch, config, step=4)]


async def test_the_same_inputs_give_the_same_bits(make_trainer: Any) -> None:
    found = []
    for _ in range(2):
        trainer = make_trainer()
        batch = await with_own_log_probs(trainer, grouped_batch())
        await trainer.update(batch, UpdateConfig(LossConfig(), mini_batch_size=4, ppo_epochs=2), mutation())
        found.append(weights(trainer))
    assert torch.equal(found[0], found[1])


async def test_bfloat16_compute_trains_float32_masters(make_trainer: Any) -> None:
    trainer = make_trainer(compute_dtype="bfloat16", gradient_checkpointing=True)
    before = weights(trainer)
    batch = await with_own_log_probs(trainer, grouped_batch())
    answer = await trainer.update(batch, ONE_STEP, mutation())
    assert before.dtype == torch.float32
    assert answer.metrics["actor/changed_weights_share"] > 0.9
    assert abs(answer.metrics["actor/ppo_kl"]) < 1e-3


# Done once, at the right step


async def test_a_repeated_request_is_answered_and_not_done_again(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = grouped_batch()
    ctx = mutation(0, request_id="u")
    together = await asyncio.gather(*(trainer.update(batch, ONE_STEP, ctx) for _ in range(3)))
    later = await trainer.update(batch, ONE_STEP, ctx)
    assert together[0] == together[1] == together[2] == later
    assert (await trainer.status()).step == 1


@pytest.mark.parametrize("change", [{"term": 2}, {"run_id": "other"}, {"expected_step": 1}])
async def test_a_request_id_is_of_its_run_term_and_step(make_trainer: Any, change: dict[str, Any]) -> None:
    """Another leader's call is not answered with what the last one asked for."""
    trainer = make_trainer()
    ctx = mutation(request_id="u")
    await trainer.update(grouped_batch(), ONE_STEP, ctx)
    answer = await trainer.update(grouped_batch(), ONE_STEP, dataclasses.replace(ctx, **change))
    assert answer.step == 2


async def test_a_repeat_after_the_answers_are_lost_is_refused_with_the_actual_step(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = grouped_batch()
    await trainer.update(batch, ONE_STEP, mutation(0))
    before = weights(trainer)
    calls = [
        trainer.update(batch, ONE_STEP, mutation(0)),
        trainer.optim_step(mutation(0)),
        trainer.forward_backward(batch, LossConfig(), global_normalizer(batch), mutation(0)),
        trainer.publish_weights("main", 0, mutation(0)),
        trainer.save_checkpoint("/nowhere", mutation(0)),
    ]
    for call in calls:
        with pytest.raises(StepMismatchError, match="at step 0, but it is at step 1") as caught:
            await call
        assert caught.value.metadata["actual_step"] == "1"
    assert torch.equal(weights(trainer), before)


async def test_a_caller_that_gives_up_can_ask_again_and_gets_the_one_answer(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch(8, 8))
    config = UpdateConfig(LossConfig(), mini_batch_size=4)
    with pytest.raises(DeadlineError, match="a repeat of request 'u' waits for it"):
        await trainer.update(batch, config, mutation(0, request_id="u", deadline_s=0.001))
    answer = await trainer.update(batch, config, mutation(0, request_id="u"))
    assert answer.step == 1
    assert (await trainer.status()).step == 1


async def test_the_event_loop_stays_free_during_an_update(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch(8, 8))
    work = asyncio.ensure_future(
        trainer.update(batch, UpdateConfig(LossConfig(), mini_batch_size=4, ppo_epochs=2), mutation())
    )
    answered = 0
    while not work.done():
        assert (await trainer.status()).step in (0, 1)
        answered += 1
        await asyncio.sleep(0.002)
    assert answered > 3


# forward_backward and optim_step


async def test_shares_and_a_step_equal_one_update(make_trainer: Any) -> None:
    first, second = make_trainer(), make_trainer()
    batch = await with_own_log_probs(first, grouped_batch())
    whole = await first.update(batch, ONE_STEP, mutation(0))
    normalizer = global_normalizer(batch)
    shares = [
        await second.forward_backward(batch.select(rows), LossConfig(), normalizer, mutation(0))
        for rows in (range(5), range(5, 12))
    ]
    assert [share.step for share in shares] == [0, 0]
    step = await second.optim_step(mutation(0))
    assert step.step == 1
    assert sum(share.metrics["actor/pg_loss"] for share in shares) == pytest.approx(
        whole.metrics["actor/pg_loss"], abs=1e-6
    )
    assert step.metrics["actor/grad_norm"] == pytest.approx(whole.metrics["actor/grad_norm"], rel=1e-4)
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=2e-5)


async def test_a_lost_share_is_refused_and_the_mini_batch_begins_again(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch())
    normalizer = global_normalizer(batch)
    before = weights(trainer)
    half = mutation(0, request_id="half")
    await trainer.forward_backward(batch.select(range(5)), LossConfig(), normalizer, half)
    with pytest.raises(StateError, match=r"covers \d+ trained tokens of a mini-batch of \d+; it is dropped"):
        await trainer.optim_step(mutation(0))
    assert torch.equal(weights(trainer), before)
    # The same request id computes again, since its gradient is gone.
    await trainer.forward_backward(batch.select(range(5)), LossConfig(), normalizer, half)
    await trainer.forward_backward(batch.select(range(5, 12)), LossConfig(), normalizer, mutation(0))
    assert (await trainer.optim_step(mutation(0))).step == 1


async def test_out_of_order_calls_are_refused(make_trainer: Any, tmp_path: Path) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch())
    with pytest.raises(StateError, match="there is no gradient"):
        await trainer.optim_step(mutation(0))
    await trainer.forward_backward(batch, LossConfig(), global_normalizer(batch), mutation(0))
    with pytest.raises(StateError, match="would lose them"):
        await trainer.save_checkpoint(str(tmp_path / "c"), mutation(0))
    with pytest.raises(StateError, match="wait for their optim_step"):
        await trainer.update(batch, ONE_STEP, mutation(0))
    await trainer.forward_backward(batch, LossConfig(), global_normalizer(batch), mutation(0))
    with pytest.raises(StateError, match="this mini-batch began with"):
        await trainer.forward_backward(batch, LossConfig(), GlobalNormalizer(1, 1), mutation(0))


# Faults


async def test_b5_h9_a_mini_batch_without_trained_tokens_changes_nothing_and_is_counted(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch())
    await trainer.update(batch, ONE_STEP, mutation(0))
    before = weights(trainer)
    mask = batch.ragged("response_mask")
    masked = batch.with_column("response_mask", Ragged(np.zeros_like(mask.values), mask.offsets))
    answer = await trainer.update(masked, ONE_STEP, mutation(1))
    assert answer.metrics["actor/skipped_steps"] == 1
    assert answer.metrics["actor/trained_tokens"] == 0
    assert answer.metrics["actor/pg_loss"] == 0.0
    assert torch.equal(weights(trainer), before)


async def test_h9_nan_is_shown_as_nan_skipped_counted_and_at_last_raised(
    make_trainer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(optimizer=OptimizerOptions(Schedule(1e-3), max_skipped_steps=2))
    batch = await with_own_log_probs(trainer, grouped_batch())
    before = weights(trainer)
    advantages = batch.ragged("advantages")
    poisoned = batch.with_column("advantages", Ragged(np.full_like(advantages.values, np.nan), advantages.offsets))
    for step in range(2):
        answer = await trainer.update(poisoned, ONE_STEP, mutation(step))
        assert math.isnan(answer.metrics["actor/pg_loss"])
        assert math.isnan(answer.metrics["actor/grad_norm"])
        assert answer.metrics["actor/skipped_steps"] == 1
        assert answer.metrics["actor/changed_weights_share"] == 0
    assert "gradient norm nan" in caplog.text
    with pytest.raises(InternalError, match="nan in 3 optimizer steps running"):
        await trainer.update(poisoned, ONE_STEP, mutation(2))
    assert torch.equal(weights(trainer), before)
    assert (await trainer.update(batch, ONE_STEP, mutation(2))).step == 3


async def test_an_update_that_fails_before_its_first_step_leaves_everything_as_it_was(make_trainer: Any) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch())
    before = weights(trainer)
    config = UpdateConfig(LossConfig(loss_mode="vanila"), mini_batch_size=12)
    with pytest.raises(InvalidInputError, match="vanila"):
        await trainer.update(batch, config, mutation(0))
    assert torch.equal(weights(trainer), before)
    assert (await trainer.update(batch, ONE_STEP, mutation(0))).step == 1


async def test_an_update_that_fails_half_way_allows_nothing_but_a_checkpoint(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    batch = await with_own_log_probs(trainer, grouped_batch())
    await trainer.save_checkpoint(str(tmp_path / "good"), mutation(0))
    before = weights(trainer)
    real, calls = trainer._backend.forward_backward, []

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return real(*args)

    monkeypatch.setattr(trainer._backend, "forward_backward", failing)
    half = dataclasses.replace(ONE_STEP, mini_batch_size=6)
    with pytest.raises(RuntimeError, match="out of memory"):
        await trainer.update(batch, half, mutation(0))
    for call in (trainer.update(batch, half, mutation(0)), trainer.publish_weights("main", 1, mutation(0))):
        with pytest.raises(StateError, match=r"failed half-way at step 0 \(out of memory\); load a checkpoint"):
            await call
    await trainer.load_checkpoint(str(tmp_path / "good"), mutation())
    assert torch.equal(weights(trainer), before)
    assert (await trainer.update(batch, half, mutation(0))).step == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mini_batch_size": 0}, "must be at least 1, got 0"),
        ({"ppo_epochs": 0}, "must be at least 1"),
        ({"loss": LossConfig(loss_agg_mode="mean")}, "loss_agg_mode 'mean'"),
        ({"loss": LossConfig(use_kl_loss=True, kl_loss_type="k9")}, "kl_loss_type 'k9'"),
        ({"loss": LossConfig(temperature=0.0)}, "temperature"),
        ({"loss": LossConfig(loss_agg_mode="seq-mean-token-sum-norm")}, "loss_scale_factor"),
    ],
)
async def test_senseless_updates_are_refused(make_trainer: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        await make_trainer().update(grouped_batch(), dataclasses.replace(ONE_STEP, **fields), mutation())


async def test_an_empty_batch_is_refused(make_trainer: Any) -> None:
    with pytest.raises(InvalidInputError, match="at least one sample"):
        await make_trainer().update(grouped_batch().select([]), ONE_STEP, mutation())


async def test_log_probs_that_nobody_waits_for_stop_between_micro_batches(make_trainer: Any) -> None:
    trainer = make_trainer(log_prob_limit=MicroBatchLimit(max_sequences=1))
    batch = grouped_batch(40, 10)
    with pytest.raises(DeadlineError):
        await trainer.compute_log_probs(batch, ["log_probs"], temperature=1.0, deadline_s=0.01)
    start = time.monotonic()
    await trainer.compute_log_probs(batch.select([0]), ["log_probs"], temperature=1.0, deadline_s=60)
    alone = time.monotonic() - start
    start = time.monotonic()
    await trainer.compute_log_probs(batch, ["log_probs"], temperature=1.0, deadline_s=60)
    assert alone < 0.5 * (time.monotonic() - start)
