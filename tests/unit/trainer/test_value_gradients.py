"""The critic's gradient against a plain float64 computation, one unpadded sequence at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argosy.algorithms.aggregation import AGGREGATIONS
from argosy.modeling.loading import ModelSource
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.backends.single import SingleProcessBackend
from argosy.trainer.objective import global_normalizer
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig
from support.training import grouped_batch, options_for
from support.value_reference import LOSS, plain_critic, reference_loss, save_critic, value_batch


@pytest.fixture(scope="module")
def critic_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_critic(tiny_folder, tmp_path_factory.mktemp("critic"))


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_gradient_equals_the_definition_in_float64(critic_folder: Path, mode: str) -> None:
    batch = value_batch()
    loss = replace(LOSS, loss_agg_mode=mode, loss_scale_factor=16.0)
    source = ModelSource(str(critic_folder), dtype="float64", device="cpu")
    backend = SingleProcessBackend(options_for(critic_folder, model=source, value_head=True))
    metrics = backend.forward_backward(batch, loss, global_normalizer(batch))
    plain = plain_critic(critic_folder)
    expected, clipped = reference_loss(plain, batch, mode, 16.0)
    expected.backward()  # type: ignore[no-untyped-call]
    assert metrics["critic/vf_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["critic/vf_clipfrac"] == pytest.approx(clipped)
    assert 0.05 < clipped < 0.95
    found = {name: parameter.grad for name, parameter in backend.model_for_export().named_parameters()}
    wanted = dict(plain.named_parameters())
    assert found.keys() == wanted.keys()
    for name, parameter in wanted.items():
        torch.testing.assert_close(found[name], parameter.grad, rtol=2e-3, atol=1e-5)


@pytest.fixture(scope="module")
def backend(critic_folder: Path) -> SingleProcessBackend:
    return SingleProcessBackend(options_for(critic_folder, value_head=True))


def gradient(backend: SingleProcessBackend, parts: list[TrajectoryBatch], whole: TrajectoryBatch) -> Tensor:
    """All gradients as one vector, after a forward_backward of each part."""
    backend.zero_grad()
    for part in parts:
        backend.forward_backward(part, LOSS, global_normalizer(whole))
    return torch.cat([p.grad.reshape(-1) for p in backend.model_for_export().parameters() if p.grad is not None])


@settings(deadline=None, max_examples=12)
@given(
    order=st.permutations(range(12)),
    cut=st.integers(1, 12),
    limit=st.sampled_from(
        [MicroBatchLimit(max_sequences=1), MicroBatchLimit(max_sequences=5), MicroBatchLimit(max_tokens=40)]
    ),
)
def test_b4_gradient_does_not_depend_on_order_ranks_or_micro_batches(
    backend: SingleProcessBackend, order: list[int], cut: int, limit: MicroBatchLimit
) -> None:
    batch = value_batch()
    backend._options = replace(backend._options, update_limit=MicroBatchLimit())
    whole = gradient(backend, [batch], batch)
    backend._options = replace(backend._options, update_limit=limit)
    split = gradient(backend, [batch.select(order[:cut]), batch.select(order[cut:])], batch)
    torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-6)


def test_checkpointing_changes_nothing(critic_folder: Path, backend: SingleProcessBackend) -> None:
    batch = value_batch()
    recomputed = SingleProcessBackend(options_for(critic_folder, value_head=True, gradient_checkpointing=True))
    torch.testing.assert_close(
        gradient(recomputed, [batch], batch), gradient(backend, [batch], batch), rtol=1e-5, atol=1e-7
    )


def test_e1_a_filler_adds_nothing(backend: SingleProcessBackend) -> None:
    """A rank that has run out of rows computes one again with weight 0 (B4's sum stays)."""
    batch = value_batch()
    expected = gradient(backend, [batch], batch)
    rows = np.arange(3)
    found = backend._compute.micro_batch(batch, rows, LOSS, global_normalizer(batch), 1.0, loss_scale=0.0)
    assert found == {}
    parameters = backend.model_for_export().parameters()
    after = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    torch.testing.assert_close(after, expected, rtol=0, atol=0)


def test_b5_a_batch_without_trained_tokens_has_no_gradient(backend: SingleProcessBackend) -> None:
    batch = value_batch()
    mask = batch.ragged("response_mask")
    none = batch.with_column("response_mask", Ragged(np.zeros_like(mask.values), mask.offsets))
    backend.zero_grad()
    assert backend.forward_backward(none, LOSS, global_normalizer(none)) == {}
    gradients = [parameter.grad for parameter in backend.model_for_export().parameters()]
    assert not any(bool(gradient.any()) for gradient in gradients if gradient is not None)


def test_a_batch_of_a_policy_is_refused(backend: SingleProcessBackend) -> None:
    batch = grouped_batch()
    with pytest.raises(InvalidInputError, match="no column 'returns'"):
        backend.forward_backward(batch, LOSS, global_normalizer(batch))
    with pytest.raises(InvalidInputError, match="has the loss_mode 'value'"):
        backend.forward_backward(value_batch(), LossConfig(), global_normalizer(batch))
