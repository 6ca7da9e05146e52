"""What every trainer backend does, on one process or on several: one suite, against plain float64 computations.

A backend joins by a line in `FORMS`. Those with ranks are real processes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from argosy.algorithms.aggregation import AGGREGATIONS
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends import Backend, make_backend
from argosy.trainer.backends.base import BackendState
from argosy.trainer.computing import Closable
from argosy.trainer.objective import global_normalizer
from argosy.trainer.options import OptimizerOptions, TrainerOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.ranks.backend import with_ranks
from argosy.trainer.schedule import Schedule
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import AbortedError, InternalError, InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig
from support.policy_reference import FULL_LOSS, policy_batch, reference_loss
from support.training import grouped_batch, options_for

pytestmark = pytest.mark.xdist_group("backends")

CLIP = 1.0
BETA = 0.9
"""AdamW's first moment after one step is (1 - BETA) times the clipped gradient: how the suite reads gradients."""


def parallel(options: TrainerOptions, ranks: ParallelOptions) -> TrainerOptions:
    return dataclasses.replace(options, backend="fsdp", parallel=ranks)


FORMS: dict[str, Callable[[TrainerOptions], TrainerOptions]] = {
    "single": lambda options: options,
    "fsdp-1": lambda options: with_ranks(options, "fsdp", 1),
    "fsdp-2": lambda options: with_ranks(options, "fsdp", 2),
    "fsdp-2-checkpointed": lambda options: dataclasses.replace(
        with_ranks(options, "fsdp", 2), gradient_checkpointing=True
    ),
    "fsdp-2-tensor": lambda options: parallel(options, ParallelOptions(2, tensor_parallel=2)),
    "fsdp-2-sequence": lambda options: parallel(options, ParallelOptions(2, sequence_parallel=2)),
    "fsdp-4-both": lambda options: parallel(options, ParallelOptions(4, tensor_parallel=2)),
    "megatron-1": lambda options: with_ranks(options, "megatron", 1),
    "megatron-2-tensor": lambda options: dataclasses.replace(
        options,
        backend="megatron",
        parallel=ParallelOptions(world_size=2, tensor_parallel=2),
        gradient_checkpointing=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A backend under test, and how to bring it back to its start."""

    backend: Backend
    start: BackendState

    def reset(self) -> Backend:
        self.backend.load_state(self.start)
        return self.backend

    def gradient(self, batch: TrajectoryBatch, loss: LossConfig) -> tuple[dict[str, Tensor], float, dict[str, float]]:
        """Of the mini-batch `batch`, by parameter name, with its norm and the metrics; the weights stay."""
        backend = self.reset()
        metrics = backend.forward_backward(batch, loss, global_normalizer(batch))
        norm = backend.optim_step(0.0).grad_norm
        moments = {name: tensor for name, tensor in backend.state().optimizer.items() if name.startswith("exp_avg/")}
        scale = (1 - BETA) * min(1.0, CLIP / norm)
        return {name.removeprefix("exp_avg/"): tensor / scale for name, tensor in moments.items()}, norm, metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("backends") / "tiny", weight_scale=3.0)


@pytest.fixture(scope="module", params=FORMS)
def subject(request: pytest.FixtureRequest, folder: Path) -> Iterator[Subject]:
    optimizer = OptimizerOptions(Schedule(1e-3), betas=(BETA, 0.999), grad_clip=CLIP, max_skipped_steps=2)
    limit = MicroBatchLimit(max_tokens=100)
    options = options_for(folder, threads=1, optimizer=optimizer, update_limit=limit, log_prob_limit=limit)
    backend = make_backend(FORMS[request.param](options))
    start = backend.state()
    copied = {name: tensor.clone() for name, tensor in start.model.items()}
    yield Subject(backend, dataclasses.replace(start, model=copied))
    if isinstance(backend, Closable):
        backend.close()


def plain_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


def reference_gradient(folder: Path, batch: TrajectoryBatch, loss: LossConfig) -> tuple[dict[str, Tensor], float]:
    model = plain_model(folder)
    value = reference_loss(model, batch, loss, loss.loss_agg_mode)
    value.backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters()}, float(value.detach())


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].double(), tensor.double(), rtol=2e-3, atol=2e-5, msg=f"of {name}")


def total_norm(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in gradients.values()))


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_gradient_equals_the_definition(subject: Subject, folder: Path, mode: str) -> None:
    batch, loss = policy_batch(), dataclasses.replace(FULL_LOSS, loss_agg_mode=mode)
    expected, value = reference_gradient(folder, batch, loss)
    found, norm, metrics = subject.gradient(batch, loss)
    assert_equal(found, expected)
    assert metrics["actor/loss"] == pytest.approx(value, rel=1e-4)
    assert norm == pytest.approx(total_norm(expected), rel=1e-4), "the norm of all ranks' gradients (case E8)"


def p_and_q() -> TrajectoryBatch:
    """P has 6 tokens of loss 1, Q has 2 tokens of loss 4."""
    return TrajectoryBatch.build(
        [SampleId(0, 0, 0), SampleId(0, 0, 1)],
        [[7, 8]] * 2,
        [[5] * 6, [5] * 2],
        advantages=Ragged.from_rows([[-1.0] * 6, [-4.0] * 2], np.float32),
    )


def test_b4_token_mean_is_that_of_all_tokens(subject: Subject) -> None:
    _, _, metrics = subject.gradient(p_and_q(), LossConfig())
    assert metrics["actor/pg_loss"] == pytest.approx(14 / 8, abs=1e-6)


def test_b6_the_constant_divisor_is_a_constant(subject: Subject) -> None:
    loss = LossConfig(loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=16)
    _, _, metrics = subject.gradient(p_and_q(), loss)
    assert metrics["actor/pg_loss"] == pytest.approx(14 / (2 * 16), abs=1e-6)


def test_b4_parts_of_a_mini_batch_add_up(subject: Subject) -> None:
    batch = policy_batch(2)
    whole, _, metrics = subject.gradient(batch, FULL_LOSS)
    backend = subject.reset()
    shares = [
        backend.forward_backward(batch.select(rows), FULL_LOSS, global_normalizer(batch))
        for rows in ([0, 3, 5], [1, 2, 4, 6, 7, 8, 9, 10, 11])
    ]
    norm = backend.optim_step(0.0).grad_norm
    scale = (1 - BETA) * min(1.0, CLIP / norm)
    found = {name: tensor / scale for name, tensor in backend.state().optimizer.items() if name.startswith("exp_avg/")}
    assert_equal({name.removeprefix("exp_avg/"): tensor for name, tensor in found.items()}, whole)
    assert shares[0]["actor/loss"] + shares[1]["actor/loss"] == pytest.approx(metrics["actor/loss"], rel=1e-5)


def test_b5_a_batch_without_a_trained_token_is_a_finite_nothing(subject: Subject) -> None:
    batch = policy_batch(1)
    mask = batch.ragged("response_mask")
    batch = batch.with_column("response_mask", Ragged(np.zeros_like(mask.values), mask.offsets))
    backend = subject.reset()
    metrics = backend.forward_backward(batch, FULL_LOSS, global_normalizer(batch))
    assert all(math.isfinite(value) for value in metrics.values())
    assert backend.optim_step(1e-3).grad_norm == 0.0


@pytest.mark.parametrize(
    "lengths",
    [[95] * 5 + [20] * 5, [95] * 5 + [20], [95]],
    ids=["many and few micro-batches", "one short row", "fewer rows than ranks"],
)
def test_e1_ranks_with_unequal_work_finish_with_the_single_gradient(
    subject: Subject, folder: Path, lengths: list[int]
) -> None:
    """Budget 100 tokens: a row of 95 fills a micro-batch, five of 20 share one, and the last batch is one row."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 250, 2).tolist() for _ in lengths]
    responses = [rng.integers(3, 250, length - 2).tolist() for length in lengths]
    batch = TrajectoryBatch.build([SampleId(0, row, 0) for row in range(len(lengths))], prompts, responses)
    offsets = batch.ragged("response_ids").offsets
    for name, low in (("advantages", 0.0), ("old_log_probs", -5.0), ("ref_log_probs", -5.0)):
        batch = batch.with_column(name, Ragged(rng.normal(low, 0.7, offsets[-1]).astype(np.float32), offsets))
    expected, _ = reference_gradient(folder, batch, FULL_LOSS)
    assert_equal(subject.gradient(batch, FULL_LOSS)[0], expected)


def spoiled(batch: TrajectoryBatch) -> TrajectoryBatch:
    """With NaN in one token's advantage: a NaN gradient on the one rank that gets its row."""
    column = batch.ragged("advantages")
    values = column.values.copy()
    values[0] = np.nan
    return batch.with_column("advantages", Ragged(values, column.offsets))


def test_h9_a_nan_gradient_on_one_rank_skips_the_step_on_all_and_is_counted(subject: Subject) -> None:
    batch = policy_batch()
    backend = subject.reset()
    before = {name: tensor.clone() for name, tensor in backend.state().model.items()}
    for count in (1, 2):
        backend.forward_backward(spoiled(batch), FULL_LOSS, global_normalizer(batch))
        outcome = backend.optim_step(1e-3)
        assert outcome.skipped
        assert math.isnan(outcome.grad_norm)
        state = backend.state()
        assert (state.counters["skipped_steps"], state.counters["consecutive_skips"]) == (count, count)
        assert all(torch.equal(tensor, before[name]) for name, tensor in state.model.items())
    backend.forward_backward(spoiled(batch), FULL_LOSS, global_normalizer(batch))
    with pytest.raises(InternalError, match="nan in 3 optimizer steps running"):
        backend.optim_step(1e-3)
    backend.forward_backward(batch, FULL_LOSS, global_normalizer(batch))
    assert not backend.optim_step(1e-3).skipped, "an error that all ranks share leaves them in step"


def test_log_probs_entropy_and_sum_of_squares_equal_the_definition(subject: Subject, folder: Path) -> None:
    batch = grouped_batch(group_count=4, n=3, seed=3)
    answer = subject.reset().evaluate(batch, ["log_probs", "entropy", "sum_pi_squared"], 0.7, lambda: False)
    model = plain_model(folder)
    with torch.no_grad():
        for row, sample in enumerate(batch.sample_ids):
            prompt, response = batch.ragged("prompt_ids")[row], batch.ragged("response_ids")[row]
            ids = torch.tensor(np.concatenate([prompt, response]), dtype=torch.int64)
            log_pi = torch.log_softmax(model(input_ids=ids[None]).logits[0].double() / 0.7, -1)[len(prompt) - 1 : -1]
            expected = {
                "log_probs": log_pi.gather(1, ids[len(prompt) :, None])[:, 0],
                "entropy": -(log_pi.exp() * log_pi).sum(1),
                "sum_pi_squared": log_pi.exp().square().sum(1),
            }
            place = answer.sample_ids.index(sample)
            for name, values in expected.items():
                np.testing.assert_allclose(answer.ragged(name)[place], values.numpy(), rtol=1e-3, atol=1e-4)


def test_b20_results_go_back_to_their_samples(subject: Subject) -> None:
    """Six sequences of lengths 9, 2, 7, 3, 8, 1 (and one without a response): each gets what it would get alone."""
    lengths = [9, 2, 7, 3, 8, 1, 0]
    rng = np.random.default_rng(1)
    ids = [SampleId(0, row, 0) for row in range(len(lengths))]
    prompts = [rng.integers(3, 250, 4).tolist() for _ in lengths]
    batch = TrajectoryBatch.build(ids, prompts, [rng.integers(3, 250, length).tolist() for length in lengths])
    backend = subject.reset()
    answer = backend.evaluate(batch, ["log_probs"], 1.0, lambda: False)
    by_id = dict(zip(answer.sample_ids, answer.ragged("log_probs"), strict=True))
    assert answer.sample_ids == batch.sample_ids
    for row, (sample, length) in enumerate(zip(ids, lengths, strict=True)):
        assert len(by_id[sample]) == length
        alone = backend.evaluate(batch.select([row]), ["log_probs"], 1.0, lambda: False).ragged("log_probs")[0]
        np.testing.assert_allclose(by_id[sample], alone, atol=2e-5)


def test_agreement_with_the_rollout_is_that_of_all_rows(subject: Subject) -> None:
    batch = grouped_batch(seed=5)
    backend = subject.reset()
    own = backend.evaluate(batch, ["log_probs"], 1.0, lambda: False).ragged("log_probs")
    drift = np.linspace(-0.5, 0.5, len(own.values), dtype=np.float32)
    batch = batch.with_column("rollout_log_probs", Ragged(own.values + drift, own.offsets))
    _, _, metrics = subject.gradient(batch, LossConfig())
    trained = batch.ragged("response_mask").values > 0
    gaps = np.abs(np.exp(own.values + drift) - np.exp(own.values))[trained]
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(float(gaps.max()), rel=1e-3)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(float(gaps.mean()), rel=1e-3)


def test_a_cancelled_evaluation_stops_everywhere_and_the_next_one_works(subject: Subject) -> None:
    batch = grouped_batch()
    backend = subject.reset()
    with pytest.raises(AbortedError, match="nobody waits"):
        backend.evaluate(batch, ["log_probs"], 1.0, lambda: True)
    assert len(backend.evaluate(batch, ["log_probs"], 1.0, lambda: False)) == len(batch)


def test_a_bad_batch_is_refused_by_name_and_harms_nothing(subject: Subject) -> None:
    batch = grouped_batch()
    backend = subject.reset()
    with pytest.raises(InvalidInputError, match="no column 'ref_log_probs'"):
        backend.forward_backward(batch, FULL_LOSS, global_normalizer(batch))
    backend.forward_backward(batch, LossConfig(), global_normalizer(batch))
    assert not backend.optim_step(1e-3).skipped


def test_weights_are_the_models_by_its_own_names(subject: Subject, folder: Path) -> None:
    weights, tied = subject.reset().weights()
    expected = plain_model(folder).state_dict()
    assert weights.keys() == expected.keys()
    assert tied == {"lm_head.weight": "model.embed_tokens.weight"}
    for name, tensor in expected.items():
        assert torch.equal(weights[name].double(), tensor), name
    assert subject.backend.parameter_count == sum(
        tensor.numel() for name, tensor in expected.items() if name not in tied
    )


def _cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_a_restored_state_repeats_the_step_bit_for_bit(subject: Subject) -> None:
    batch = policy_batch(7)
    backend = subject.reset()

    def step() -> None:
        backend.forward_backward(batch, FULL_LOSS, global_normalizer(batch))
        backend.optim_step(1e-3)

    step()
    state = backend.state()
    kept = BackendState(_cloned(state.model), _cloned(state.optimizer), _cloned(state.rng), dict(state.counters))
    step()
    expected = {name: tensor.clone() for name, tensor in backend.state().model.items()}
    assert any(not torch.equal(tensor, kept.model[name]) for name, tensor in expected.items())
    backend.load_state(kept)
    backend.forward_backward(batch, FULL_LOSS, global_normalizer(batch))
    backend.offload()  # others use the device in between: gradients, too, are there again afterwards
    backend.onload()
    backend.optim_step(1e-3)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in backend.state().model.items())


def test_h5_a_state_of_another_model_is_refused_and_changes_nothing(subject: Subject) -> None:
    backend = subject.reset()
    name = next(iter(subject.start.model))
    other = {key: tensor + 1.0 for key, tensor in subject.start.model.items() if key != name}
    with pytest.raises(InvalidInputError, match=f"{name} is missing"):
        backend.load_state(dataclasses.replace(subject.start, model=other))
    assert all(torch.equal(tensor, subject.start.model[key]) for key, tensor in backend.state().model.items())


def test_an_export_is_the_model_again(subject: Subject, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    subject.reset().model_for_export().save_pretrained(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert saved.config.tie_word_embeddings
    for name, tensor in saved.state_dict().items():
        if name in subject.start.model:
            assert torch.equal(tensor, subject.start.model[name]), name


def test_memory_is_reported(subject: Subject) -> None:
    found = subject.backend.memory_metrics()
    assert 0 < found["perf/cpu_memory_used_gb"] <= 1.01 * found["perf/max_cpu_memory_used_gb"]
