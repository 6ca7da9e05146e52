"""The policy role: the training core itself, and its client behind a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from argosy.api.trainer.v1 import trainer_service_pb2_grpc
from argosy.modeling.loading import ModelSource
from argosy.roles.policy import Policy
from argosy.rpc.clients.policy import PolicyClient
from argosy.rpc.retry import RetryPolicy
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import OptimizerOptions, TrainerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StepMismatchError,
    StorageError,
)
from argosy.types.records import GlobalNormalizer, LossConfig, UpdateConfig
from argosy.weightsync import Staging, verify_agreement, verify_canary
from argosy.weightsync.transports.stream import pull as receive
from contract.batches import batch_of
from contract.forms import DEADLINE_S, RUN, Form, MakeRollout, collect, mutation, request
from contract.test_weight_sync import sync

MakeTrainer = Callable[[], Trainer]
CONFIG = UpdateConfig(LossConfig(), mini_batch_size=3, ppo_epochs=2)
COLUMNS = ("log_probs", "entropy", "sum_pi_squared")


@pytest.fixture
async def make_trainer(tiny: Path) -> AsyncIterator[MakeTrainer]:
    made: list[Trainer] = []

    def make() -> Trainer:
        options = TrainerOptions(
            model=ModelSource(path=str(tiny)),
            optimizer=OptimizerOptions(schedule=Schedule(0.05)),
            threads=1,
        )
        made.append(Trainer(options, make_backend))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


async def weights_of(policy: Policy, step: int = 0) -> dict[str, torch.Tensor]:
    """Publish, and fetch what is published."""
    manifest = await policy.publish_weights("main", step, mutation())
    source, staging = policy.weight_source(), Staging(manifest)
    await receive(source, await source.get_manifest(), staging, DEADLINE_S)
    return staging.finish()


async def test_an_update_gives_the_same_numbers_and_weights(form: Form, make_trainer: MakeTrainer) -> None:
    direct, policy = make_trainer(), await form.policy(make_trainer())
    expected = await direct.update(batch_of(), CONFIG, mutation(expected_step=0))
    result = await policy.update(batch_of(), CONFIG, mutation(expected_step=0))
    assert result.step == expected.step == 1
    assert {name: value for name, value in result.metrics.items() if not name.startswith("perf/")} == pytest.approx(
        {name: value for name, value in expected.metrics.items() if not name.startswith("perf/")}, nan_ok=True
    )
    left, right = await weights_of(direct, 1), await weights_of(policy, 1)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


async def test_log_probs_agree_and_are_matched_by_id(form: Form, make_trainer: MakeTrainer) -> None:
    core = make_trainer()
    policy = await form.policy(core)
    batch = batch_of(advantages=False)
    expected = await core.compute_log_probs(batch, COLUMNS, temperature=0.7, deadline_s=DEADLINE_S)
    order = np.random.default_rng(1).permutation(len(batch))
    answer = await policy.compute_log_probs(batch.select(order), COLUMNS, temperature=0.7, deadline_s=DEADLINE_S)
    for column in COLUMNS:
        wanted = dict(zip(expected.sample_ids, expected.ragged(column), strict=True))
        found = dict(zip(answer.sample_ids, answer.ragged(column), strict=True))
        assert wanted.keys() == found.keys()
        for sample, values in wanted.items():
            np.testing.assert_allclose(found[sample], values, atol=1e-6)


async def test_off_the_device_it_comes_back_by_itself_when_it_computes(form: Form, make_trainer: MakeTrainer) -> None:
    core = make_trainer()
    policy = await form.policy(core)
    calls: list[str] = []

    def note(name: str) -> None:
        plain = getattr(core._backend, name)

        def noted() -> None:
            calls.append(name)
            plain()

        setattr(core._backend, name, noted)

    note("offload")
    note("onload")
    first = await policy.update(batch_of(), CONFIG, mutation(expected_step=0))
    for _ in range(2):
        await policy.offload(mutation())
    assert calls == ["offload"]
    second = await policy.update(batch_of(), CONFIG, mutation(expected_step=first.step))
    assert (second.step, calls) == (2, ["offload", "onload"])
    await policy.offload(mutation())
    await policy.compute_log_probs(batch_of(advantages=False), COLUMNS, temperature=1.0, deadline_s=DEADLINE_S)
    assert calls == ["offload", "onload"] * 2


@pytest.mark.parametrize(
    ("columns", "temperature"), [(("log_probs", "nonsense"), 1.0), (("log_probs",), 0.0), (("log_probs",), -1.0)]
)
async def test_bad_log_prob_calls_are_refused(
    form: Form, make_trainer: MakeTrainer, columns: tuple[str, ...], temperature: float
) -> None:
    policy = await form.policy(make_trainer())
    with pytest.raises(InvalidInputError):
        await policy.compute_log_probs(
            batch_of(advantages=False), columns, temperature=temperature, deadline_s=DEADLINE_S
        )


async def test_forward_backward_in_parts_is_one_update(form: Form, make_trainer: MakeTrainer) -> None:
    whole, parts = make_trainer(), await form.policy(make_trainer())
    batch = batch_of()
    expected = await whole.update(batch, UpdateConfig(LossConfig(), mini_batch_size=len(batch)), mutation())
    normalizer = GlobalNormalizer(float(batch.ragged("response_mask").values.sum()), float(len(batch)))
    for rows in ([4, 0], [1], [5, 3, 2]):
        result = await parts.forward_backward(batch.select(rows), LossConfig(), normalizer, mutation(expected_step=0))
        assert result.step == 0
    result = await parts.optim_step(mutation(expected_step=0))
    assert result.step == 1
    assert result.metrics["actor/grad_norm"] == pytest.approx(expected.metrics["actor/grad_norm"], rel=1e-5)
    left, right = await weights_of(whole, 1), await weights_of(parts, 1)
    for name, tensor in left.items():
        # Adam's first step is nearly the gradient's sign: rounding of a gradient near 0 moves a weight by up to lr.
        torch.testing.assert_close(right[name], tensor, rtol=1e-3, atol=1e-3)


async def test_a_failed_part_means_that_all_parts_are_sent_again(form: Form, make_trainer: MakeTrainer) -> None:
    policy = await form.policy(make_trainer())
    batch = batch_of()
    normalizer = GlobalNormalizer(float(batch.ragged("response_mask").values.sum()), float(len(batch)))
    first = mutation("part-1")
    await policy.forward_backward(batch, LossConfig(), normalizer, first)
    with pytest.raises(InvalidInputError):
        await policy.forward_backward(batch_of(advantages=False), LossConfig(), normalizer, mutation())
    with pytest.raises(StateError):
        await policy.optim_step(mutation())  # the gradients are gone
    await policy.forward_backward(batch, LossConfig(), normalizer, first)
    assert (await policy.optim_step(mutation())).step == 1


async def test_a_wrong_expected_step_is_refused_with_the_actual_one(form: Form, make_trainer: MakeTrainer) -> None:
    policy = await form.policy(make_trainer())
    await policy.update(batch_of(), CONFIG, mutation(expected_step=0))
    for call in (
        policy.update(batch_of(), CONFIG, mutation(expected_step=0)),
        policy.optim_step(mutation(expected_step=5)),
        policy.publish_weights("main", 2, mutation(expected_step=2)),
    ):
        with pytest.raises(StepMismatchError) as caught:
            await call
        assert caught.value.metadata["actual_step"] == "1"
    assert (await policy.status()).step == 1


async def test_f15_a_repeated_request_id_returns_the_first_answer_and_one_step(
    form: Form, make_trainer: MakeTrainer
) -> None:
    policy = await form.policy(make_trainer())
    ctx = mutation("update-1", expected_step=0)
    answers = await asyncio.gather(*(policy.update(batch_of(), CONFIG, ctx) for _ in range(3)))
    answers.append(await policy.update(batch_of(), CONFIG, ctx))
    assert [answer.step for answer in answers] == [1] * 4
    assert all(dict(answer.metrics) == dict(answers[0].metrics) for answer in answers)
    assert (await policy.status()).step == 1


class SlowFirstAnswer(grpc.aio.ServerInterceptor):
    """Does the work, and then keeps the first answers to itself for longer than a try lasts."""

    def __init__(self, slow_count: int, delay_s: float) -> None:
        self.calls = 0
        self._slow_count = slow_count
        self._delay_s = delay_s

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if not handler_call_details.method.endswith("/Update"):
            return handler

        async def slow(request: Any, context: Any) -> Any:
            response = await handler.stream_unary(request, context)
            self.calls += 1
            if self.calls <= self._slow_count:
                await asyncio.sleep(self._delay_s)
            return response

        return grpc.stream_unary_rpc_method_handler(
            slow,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


async def test_f15_a_deadline_passed_and_the_work_done_anyway_is_one_step(
    grpc_form: Form, make_trainer: MakeTrainer
) -> None:
    from argosy.rpc.server import RpcServer
    from argosy.trainer.service import add_to_server

    core, slow = make_trainer(), SlowFirstAnswer(2, 30.0)
    server = RpcServer.listen("127.0.0.1", interceptors=[slow])
    names = add_to_server(core, server.server, server.gate)
    await server.start()
    await server.serve(names)
    client = PolicyClient(server.address, policy=RetryPolicy(attempt_timeout_s=2.0, first_backoff_s=0.01))
    result = await client.update(batch_of(), CONFIG, mutation("update-1", expected_step=0))
    assert slow.calls == 3
    assert result.step == (await core.status()).step == 1
    await client.close()
    await server.stop(0)


async def test_terms_are_fenced(grpc_form: Form, make_trainer: MakeTrainer) -> None:
    core = make_trainer()
    policy = await grpc_form.policy(core)
    await policy.update(batch_of(), CONFIG, mutation("update-1", term=4, expected_step=0))
    with pytest.raises(FencedError):
        await policy.update(batch_of(), CONFIG, mutation("update-2", term=3, expected_step=1))
    assert grpc_form.gates[-1].terms.current(RUN) == 4
    assert (await core.status()).step == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda batch: batch.select([]),
        lambda batch: batch_of(advantages=False),
    ],
)
async def test_a_bad_batch_changes_nothing(form: Form, make_trainer: MakeTrainer, spoil: Any) -> None:
    policy = await form.policy(make_trainer())
    before = await weights_of(policy)
    with pytest.raises(InvalidInputError):
        await policy.update(spoil(batch_of()), CONFIG, mutation(expected_step=0))
    assert (await policy.status()).step == 0
    after = await weights_of(policy)
    assert all(torch.equal(before[name], after[name]) for name in before)


async def test_unknown_losses_are_refused(form: Form, make_trainer: MakeTrainer) -> None:
    policy = await form.policy(make_trainer())
    for loss in (LossConfig(loss_mode="nonsense"), LossConfig(loss_agg_mode="nonsense"), LossConfig(temperature=0.0)):
        with pytest.raises(InvalidInputError):
            await policy.update(batch_of(), UpdateConfig(loss, 6), mutation())


async def test_the_status(form: Form, make_trainer: MakeTrainer) -> None:
    core = make_trainer()
    policy = await form.policy(core)
    assert await policy.status() == await core.status()
    assert (await policy.status()).version is None
    with pytest.raises(NotFoundError, match="published no weights"):
        await policy.weight_source().get_manifest()
    manifest = await policy.publish_weights("main", 0, mutation(expected_step=0))
    status = await policy.status()
    assert (status.version, status.has_value_head) == (manifest.version, False)
    assert status.parameter_count > 10_000


async def test_a_checkpoint_restores_and_the_same_steps_are_done_again(
    form: Form, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    policy = await form.policy(make_trainer())
    await policy.update(batch_of(), CONFIG, mutation("update-1", expected_step=0))
    files = await policy.save_checkpoint(str(tmp_path / "ckpt"), mutation("save-1", expected_step=1))
    assert files
    assert all((tmp_path / "ckpt" / name).is_file() for name in files)
    second = await policy.update(batch_of(seed=1), CONFIG, mutation("update-2", expected_step=1))
    weights = await weights_of(policy, 2)
    status = await policy.load_checkpoint(str(tmp_path / "ckpt"), mutation("load-1"))
    assert status.step == 1
    again = await policy.update(batch_of(seed=1), CONFIG, mutation("update-2", expected_step=1))
    assert again.step == second.step == 2
    assert again.metrics["actor/grad_norm"] == second.metrics["actor/grad_norm"]
    restored = await weights_of(policy, 2)
    assert all(torch.equal(weights[name], restored[name]) for name in weights)


async def test_a_background_save_holds_the_step_at_which_it_began(
    form: Form, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    policy = await form.policy(make_trainer())
    with pytest.raises(StateError, match="there was none"):
        await policy.finish_save(str(tmp_path / "ckpt"), deadline_s=DEADLINE_S)
    before = await weights_of(policy)
    assert not await policy.save_checkpoint(
        str(tmp_path / "ckpt"), mutation("save-0", expected_step=0), background=True
    )
    await policy.update(batch_of(), CONFIG, mutation("update-1", expected_step=0))
    files = await policy.finish_save(str(tmp_path / "ckpt"), deadline_s=DEADLINE_S)
    assert files
    assert list(files) == list(await policy.finish_save(str(tmp_path / "ckpt"), deadline_s=DEADLINE_S))
    assert all((tmp_path / "ckpt" / name).is_file() for name in files)
    assert (await policy.load_checkpoint(str(tmp_path / "ckpt"), mutation())).step == 0
    after = await weights_of(policy, 7)
    assert all(torch.equal(before[name], after[name]) for name in before)


async def test_a_background_save_that_fails_is_told(form: Form, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy = await form.policy(make_trainer())
    (tmp_path / "taken").write_text("a file, where a folder should be made")
    await policy.save_checkpoint(str(tmp_path / "taken" / "ckpt"), mutation(), background=True)
    with pytest.raises(StorageError, match="taken"):
        await policy.finish_save(str(tmp_path / "taken" / "ckpt"), deadline_s=DEADLINE_S)
    with pytest.raises(StorageError, match="taken"):
        await policy.save_checkpoint(str(tmp_path / "taken" / "ckpt"), mutation("again"))
    with pytest.raises(StorageError, match="taken"):
        await policy.save_checkpoint(str(tmp_path / "taken" / "ckpt"), mutation("again"))


async def test_a_damaged_checkpoint_is_refused_by_name(form: Form, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy = await form.policy(make_trainer())
    files = await policy.save_checkpoint(str(tmp_path / "ckpt"), mutation())
    largest = max((tmp_path / "ckpt" / name for name in files), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])
    with pytest.raises(CorruptDataError, match=largest.name):
        await policy.load_checkpoint(str(tmp_path / "ckpt"), mutation())
    with pytest.raises((InvalidInputError, NotFoundError, CorruptDataError)):
        await policy.load_checkpoint(str(tmp_path / "nothing"), mutation())
    assert (await policy.status()).step == 0


async def test_export_writes_a_folder_that_transformers_loads(
    form: Form, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = await form.policy(make_trainer())
    await policy.update(batch_of(), CONFIG, mutation())
    files = await policy.export_hf(str(tmp_path / "hf"), mutation())
    assert "config.json" in files
    state = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).state_dict()
    published = await weights_of(policy, 1)
    assert all(torch.equal(state[name], tensor) for name, tensor in published.items())
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").chat_template


async def test_d2_train_sync_and_both_sides_agree(
    form: Form, make_trainer: MakeTrainer, make_rollout: MakeRollout
) -> None:
    """One step of training, one sync: equal digests, equal log-probs, other greedy answers."""
    core = make_rollout(start_stale=True)
    policy, rollout = await form.policy(make_trainer()), await form.rollout(core)
    asked = [request(position, temperature=0.0) for position in range(3)]
    greedy = []
    for step in range(2):
        if step:
            await policy.update(batch_of(), CONFIG, mutation(expected_step=0))
        manifest = await policy.publish_weights("main", step, mutation(expected_step=step))
        assert await sync(rollout, policy.weight_source(), manifest, f"main-{step}") == manifest.version
        verify_agreement(manifest, await core.weight_source().get_manifest())
        found = await collect(rollout, asked)
        greedy.append([found[one.key].token_ids for one in asked])
        sampled = await collect(rollout, [request(position, purpose="warmup") for position in range(3)])
        batch = as_batch([request(position, purpose="warmup") for position in range(3)], sampled)
        answer = await policy.compute_log_probs(batch, ("log_probs",), temperature=1.0, deadline_s=DEADLINE_S)
        for sample, values in zip(answer.sample_ids, answer.ragged("log_probs"), strict=True):
            verify_canary(values, sampled[f"warmup:{sample}"].log_probs, tolerance=5e-5)
    assert greedy[0] != greedy[1]


def as_batch(asked: Any, found: Any) -> Any:
    from argosy.types.batch import TrajectoryBatch

    return TrajectoryBatch.build(
        [one.sample_id for one in asked],
        [one.prompt_ids for one in asked],
        [found[one.key].token_ids for one in asked],
    )


async def test_a_published_version_does_not_move_with_training(form: Form, make_trainer: MakeTrainer) -> None:
    policy = await form.policy(make_trainer())
    manifest = await policy.publish_weights("main", 0, mutation())
    await policy.update(batch_of(), CONFIG, mutation())
    staging = Staging(manifest)
    await receive(policy.weight_source(), manifest, staging, DEADLINE_S)
    staging.finish()
    with pytest.raises(InvalidInputError):
        await policy.publish_weights("", 1, mutation())


async def test_a_trainer_without_a_value_head_computes_no_values(grpc_form: Form, make_trainer: MakeTrainer) -> None:
    policy: Any = await grpc_form.policy(make_trainer())
    from argosy.api.trainer.v1 import trainer_service_pb2 as pb
    from argosy.rpc.chunking import batch_parts

    stub: Any = trainer_service_pb2_grpc.TrainerServiceStub(policy._caller.channel)
    messages = [pb.ComputeValuesRequest(start=pb.ComputeValuesStart())]
    messages += [pb.ComputeValuesRequest(payload=part) for part in batch_parts(batch_of())]
    with pytest.raises(grpc.aio.AioRpcError, match="no value head"):
        [response async for response in stub.ComputeValues(iter(messages))]
