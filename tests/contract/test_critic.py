"""The critic role: the training core with a value head itself, and its client behind a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.modeling.loading import ModelSource
from argosy.roles.policy import Critic
from argosy.rpc.clients.policy import PolicyClient
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import OptimizerOptions, TrainerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import CorruptDataError, InvalidInputError, StateError, StepMismatchError
from argosy.types.ragged import Ragged
from argosy.types.records import GlobalNormalizer, LossConfig, UpdateConfig
from contract.batches import batch_of
from contract.forms import DEADLINE_S, Form, mutation

MakeTrainer = Callable[..., Trainer]
LOSS = LossConfig(loss_mode="value", options={"cliprange_value": 0.5})
CONFIG = UpdateConfig(LOSS, mini_batch_size=3, ppo_epochs=2)


@pytest.fixture
async def make_trainer(tiny: Path) -> AsyncIterator[MakeTrainer]:
    made: list[Trainer] = []

    def make(*, path: Path = tiny, value_head: bool = True) -> Trainer:
        options = TrainerOptions(
            model=ModelSource(path=str(path), device="cpu"),
            value_head=value_head,
            optimizer=OptimizerOptions(schedule=Schedule(0.02), weight_decay=0.0),
            threads=1,
        )
        made.append(Trainer(options, make_backend))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def with_returns(batch: TrajectoryBatch, values: Ragged | None = None) -> TrajectoryBatch:
    """Returns that depend on the token, so that there is something to learn; values as given, or 0."""
    ids = batch.ragged("response_ids")
    returns = Ragged((ids.values % 5 / 2.0).astype(np.float32), ids.offsets)
    zeros = Ragged(np.zeros(len(ids.values), np.float32), ids.offsets)
    return batch.with_column("returns", returns).with_column("values", values or zeros)


async def values_of(critic: Critic, batch: TrajectoryBatch) -> dict[Any, list[float]]:
    answer = await critic.compute_values(batch, deadline_s=DEADLINE_S)
    rows = zip(answer.sample_ids, answer.ragged("values"), strict=True)
    return {sample: values.tolist() for sample, values in rows}


def without_memory(metrics: Any) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("perf/")}


async def test_a_new_critic_says_so_and_values_everything_0(form: Form, make_trainer: MakeTrainer) -> None:
    critic = await form.critic(make_trainer())
    status = await critic.status()
    assert (status.has_value_head, status.step, status.version) == (True, 0, None)
    batch = batch_of(advantages=False)
    found = await values_of(critic, batch)
    assert {sample: len(values) for sample, values in found.items()} == dict(
        zip(batch.sample_ids, batch.ragged("response_ids").lengths.tolist(), strict=True)
    )
    assert {value for values in found.values() for value in values} == {0.0}


async def test_an_update_gives_the_same_numbers_and_values(form: Form, make_trainer: MakeTrainer) -> None:
    direct, critic = make_trainer(), await form.critic(make_trainer())
    batch = with_returns(batch_of())
    expected = await direct.update(batch, CONFIG, mutation(expected_step=0))
    result = await critic.update(batch, CONFIG, mutation(expected_step=0))
    assert result.step == expected.step == 1
    assert without_memory(result.metrics) == pytest.approx(without_memory(expected.metrics))
    assert {"critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean", "critic/vf_explained_var"} <= (
        result.metrics.keys()
    )
    assert {"critic/grad_norm", "critic/lr"} <= result.metrics.keys()
    assert not [name for name in result.metrics if name.startswith("actor/")]
    assert "perf/critic_cpu_memory_used_gb" in result.metrics
    found = await values_of(critic, batch)
    assert found == await values_of(direct, batch)
    assert any(value != 0.0 for values in found.values() for value in values)


async def test_values_belong_to_their_sample(form: Form, make_trainer: MakeTrainer) -> None:
    critic = await form.critic(make_trainer())
    batch = with_returns(batch_of())
    await critic.update(batch, CONFIG, mutation(expected_step=0))
    order = np.random.default_rng(1).permutation(len(batch))
    shuffled, straight = await values_of(critic, batch.select(order)), await values_of(critic, batch)
    assert shuffled.keys() == straight.keys()
    for sample, values in straight.items():
        np.testing.assert_allclose(shuffled[sample], values, atol=1e-6)


async def test_it_learns_the_returns(form: Form, make_trainer: MakeTrainer) -> None:
    critic = await form.critic(make_trainer())
    batch = with_returns(batch_of())
    losses, explained = [], []
    for step in range(12):
        answer = await critic.compute_values(batch, deadline_s=DEADLINE_S)
        now = with_returns(batch, answer.ragged("values"))
        config = UpdateConfig(LOSS, mini_batch_size=len(batch))
        result = await critic.update(now, config, mutation(expected_step=step))
        losses.append(result.metrics["critic/vf_loss"])
        explained.append(result.metrics["critic/vf_explained_var"])
    assert explained[0] == pytest.approx(0.0)
    assert losses[-1] < 0.5 * losses[0]
    assert explained[-1] > 0.3


async def test_b4_forward_backward_in_parts_is_one_update(form: Form, make_trainer: MakeTrainer) -> None:
    whole, parts = make_trainer(), await form.critic(make_trainer())
    batch = with_returns(batch_of())
    expected = await whole.update(batch, UpdateConfig(LOSS, mini_batch_size=len(batch)), mutation())
    normalizer = GlobalNormalizer(float(batch.ragged("response_mask").values.sum()), float(len(batch)))
    total = 0.0
    for rows in ([4, 0], [1], [5, 3, 2]):
        result = await parts.forward_backward(batch.select(rows), LOSS, normalizer, mutation(expected_step=0))
        total += result.metrics["critic/vf_loss"]
    result = await parts.optim_step(mutation(expected_step=0))
    assert result.step == 1
    assert total == pytest.approx(expected.metrics["critic/vf_loss"], rel=1e-5)
    assert result.metrics["critic/grad_norm"] == pytest.approx(expected.metrics["critic/grad_norm"], rel=1e-5)


async def test_a_checkpoint_holds_the_head_and_goes_on_bit_for_bit(
    form: Form, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    first, second = await form.critic(make_trainer()), await form.critic(make_trainer())
    batch = with_returns(batch_of())
    await first.update(batch, CONFIG, mutation(expected_step=0))
    names = await first.save_checkpoint(str(tmp_path / "critic"), mutation(expected_step=1))
    assert all((tmp_path / "critic" / name).is_file() for name in names)
    expected = await first.update(batch, CONFIG, mutation(expected_step=1))
    status = await second.load_checkpoint(str(tmp_path / "critic"), mutation())
    assert (status.step, status.has_value_head) == (1, True)
    result = await second.update(batch, CONFIG, mutation(expected_step=1))
    assert without_memory(result.metrics) == without_memory(expected.metrics)
    assert await values_of(second, batch) == await values_of(first, batch)


async def test_a_policys_checkpoint_is_not_a_critics(form: Form, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy, critic = make_trainer(value_head=False), await form.critic(make_trainer())
    await policy.save_checkpoint(str(tmp_path / "actor"), mutation())
    with pytest.raises((InvalidInputError, CorruptDataError), match="score"):
        await critic.load_checkpoint(str(tmp_path / "actor"), mutation())
    assert (await critic.status()).step == 0


async def test_an_export_is_a_start_for_the_next_critic(form: Form, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    critic = await form.critic(make_trainer())
    batch = with_returns(batch_of())
    await critic.update(batch, CONFIG, mutation(expected_step=0))
    names = await critic.export_hf(str(tmp_path / "hf"), mutation(expected_step=1))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    again = make_trainer(path=tmp_path / "hf")
    assert await values_of(again, batch) == await values_of(critic, batch)


async def test_what_a_policy_does_is_refused(form: Form, make_trainer: MakeTrainer) -> None:
    core = make_trainer()
    if form.remote:
        policy: Any = PolicyClient((await form.critic(core)).address)  # type: ignore[attr-defined]
        form.stack.push_async_callback(policy.close)
    else:
        policy = core
    with pytest.raises(StateError, match="values, not log-probs"):
        await policy.compute_log_probs(
            batch_of(advantages=False), ["log_probs"], temperature=1.0, deadline_s=DEADLINE_S
        )
    with pytest.raises(StateError, match="none are published"):
        await policy.publish_weights("main", 0, mutation())


async def test_a_policy_has_no_values(form: Form, make_trainer: MakeTrainer) -> None:
    critic = await form.critic(make_trainer(value_head=False))
    assert not (await critic.status()).has_value_head
    with pytest.raises(StateError, match="no value head"):
        await critic.compute_values(batch_of(advantages=False), deadline_s=DEADLINE_S)


async def test_a_policy_has_no_value_loss(form: Form, make_trainer: MakeTrainer) -> None:
    critic = await form.critic(make_trainer(value_head=False))
    batch = with_returns(batch_of())
    old = Ragged(
        np.full(len(batch.ragged("response_ids").values), -5.0, np.float32), batch.ragged("response_ids").offsets
    )
    with pytest.raises(InvalidInputError, match="'value'"):
        await critic.update(batch.with_column("old_log_probs", old), CONFIG, mutation(expected_step=0))
    assert (await critic.status()).step == 0


@pytest.mark.parametrize(
    ("config", "columns", "message"),
    [
        (UpdateConfig(LossConfig(), mini_batch_size=6), ("values", "returns"), "has the loss_mode 'value'"),
        (CONFIG, ("values",), "no column 'returns'"),
        (CONFIG, ("returns",), "needs the column 'values'"),
        (
            UpdateConfig(LossConfig(loss_mode="value", options={"cliprange": 1.0}), mini_batch_size=6),
            ("values", "returns"),
            "no option 'cliprange'",
        ),
        (
            UpdateConfig(LossConfig(loss_mode="value", options={"cliprange_value": 0.0}), mini_batch_size=6),
            ("values", "returns"),
            "cliprange_value must be above 0",
        ),
    ],
)
async def test_bad_updates_are_refused_and_change_nothing(
    form: Form, make_trainer: MakeTrainer, config: UpdateConfig, columns: tuple[str, ...], message: str
) -> None:
    critic = await form.critic(make_trainer())
    batch = with_returns(batch_of())
    kept = TrajectoryBatch(
        batch.table.select(["sample_id", "prompt_ids", "response_ids", "response_mask", "advantages", *columns])
    )
    with pytest.raises(InvalidInputError, match=message):
        await critic.update(kept, config, mutation(expected_step=0))
    assert (await critic.status()).step == 0
    assert (await critic.update(batch, CONFIG, mutation(expected_step=0))).step == 1


async def test_f15_an_update_is_done_once_and_only_at_its_step(form: Form, make_trainer: MakeTrainer) -> None:
    critic = await form.critic(make_trainer())
    batch = with_returns(batch_of())
    ctx = mutation("run-1/update-critic/1", expected_step=0)
    first = await critic.update(batch, CONFIG, ctx)
    again = await critic.update(batch, CONFIG, ctx)
    assert (first.step, again.step) == (1, 1)
    assert first.metrics == again.metrics
    with pytest.raises(StepMismatchError):
        await critic.update(batch, CONFIG, mutation(expected_step=0))
