"""The trainer's gradient and step against a plain float64 computation, one unpadded sequence at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from argosy.trainer.objective import global_normalizer, rows_with_gradient
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.ragged import Ragged
from argosy.types.records import GlobalNormalizer, LossConfig
from support.policy_reference import FULL_LOSS, policy_batch, reference_loss
from support.training import grouped_batch, options_for


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_gradient_equals_the_definition_in_float64(tiny_folder: Path, mode: str) -> None:
    from transformers import AutoModelForCausalLM

    batch = policy_batch()
    loss = LossConfig(**(_fields(FULL_LOSS) | {"loss_agg_mode": mode}))
    backend = SingleProcessBackend(
        options_for(tiny_folder, model=ModelSource(str(tiny_folder), dtype="float64", device="cpu"))
    )
    metrics = backend.forward_backward(batch, loss, global_normalizer(batch))
    plain: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64, attn_implementation="eager")
    expected = reference_loss(plain.eval(), batch, loss, mode)
    expected.backward()  # type: ignore[no-untyped-call]
    assert metrics["actor/loss"] == pytest.approx(expected.item(), rel=1e-4)
    found = {name: parameter.grad for name, parameter in backend.model_for_export().named_parameters()}
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=2e-3, atol=1e-5)


def _fields(loss: LossConfig) -> dict[str, Any]:
    return {name: getattr(loss, name) for name in LossConfig.__dataclass_fields__}


@pytest.fixture(scope="module")
def backend(tiny_folder: Path) -> SingleProcessBackend:
    return SingleProcessBackend(options_for(tiny_folder))


def gradient(backend: SingleProcessBackend, parts: list[TrajectoryBatch], normalizer: GlobalNormalizer) -> Tensor:
    """All gradients as one vector, after a forward_backward of each part."""
    backend.zero_grad()
    for part in parts:
        backend.forward_backward(part, FULL_LOSS, normalizer)
    return torch.cat([p.grad.reshape(-1) for p in backend.model_for_export().parameters() if p.grad is not None])


@settings(deadline=None, max_examples=15)
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
    batch = policy_batch()
    normalizer = global_normalizer(batch)
    backend._options = options_for(Path(backend._options.model.path), update_limit=MicroBatchLimit())
    whole = gradient(backend, [batch], normalizer)
    backend._options = options_for(Path(backend._options.model.path), update_limit=limit)
    split = gradient(backend, [batch.select(order[:cut]), batch.select(order[cut:])], normalizer)
    torch.testing.assert_close(split, whole, rtol=1e-3, atol=3e-6)


def test_b4_the_textbook_case_through_a_real_model(backend: SingleProcessBackend) -> None:
    """6 tokens of loss 1 and 2 tokens of loss 4: 1.75 in one micro-batch, in two, and as two ranks' shares."""
    batch = grouped_batch(group_count=1, n=2)
    responses = Ragged.from_rows([[5] * 6, [5] * 2], np.int32)
    batch = TrajectoryBatch.build(
        batch.sample_ids,
        [[7, 8]] * 2,
        [row.tolist() for row in responses],
        advantages=Ragged.from_rows([[-1.0] * 6, [-4.0] * 2], np.float32),
    )
    normalizer = global_normalizer(batch)
    found = []
    for limit in (2, 1):
        backend._options = options_for(
            Path(backend._options.model.path), update_limit=MicroBatchLimit(max_sequences=limit)
        )
        found.append(backend.forward_backward(batch, LossConfig(), normalizer)["actor/pg_loss"])
    ranks = [backend.forward_backward(batch.select([row]), LossConfig(), normalizer) for row in (0, 1)]
    found.append(sum(rank["actor/pg_loss"] for rank in ranks))
    assert found == pytest.approx([1.75] * 3)
    backend.zero_grad()


def test_gradient_checkpointing_changes_nothing(tiny_folder: Path, backend: SingleProcessBackend) -> None:
    batch = policy_batch(3)
    checkpointed = SingleProcessBackend(options_for(tiny_folder, gradient_checkpointing=True))
    layers = checkpointed.model_for_export().model.layers
    assert all(layer.gradient_checkpointing and layer.training for layer in layers)
    assert not any(child.training for layer in layers for child in layer.children())
    found = gradient(checkpointed, [batch], global_normalizer(batch))
    torch.testing.assert_close(found, gradient(backend, [batch], global_normalizer(batch)), rtol=1e-5, atol=1e-7)


def test_rows_that_cannot_move_the_weights_are_left_out_exactly(backend: SingleProcessBackend) -> None:
    """Zero advantages (a group without spread) and all-masked rows: the gradient is the same as with them."""
    batch = policy_batch(4)
    advantages, mask = batch.ragged("advantages"), batch.ragged("response_mask")
    flat, masked = advantages.values.copy(), mask.values.copy()
    flat[: advantages.offsets[4]] = 0.0
    masked[mask.offsets[5] : mask.offsets[6]] = 0
    batch = batch.with_column("advantages", Ragged(flat, advantages.offsets))
    batch = batch.with_column("response_mask", Ragged(masked, mask.offsets))
    plain = LossConfig()
    assert rows_with_gradient(batch, plain).tolist() == [4, *range(6, 12)]
    assert rows_with_gradient(batch, FULL_LOSS).tolist() == [0, 1, 2, 3, 4, *range(6, 12)]

    normalizer = global_normalizer(batch)
    backend.zero_grad()
    backend.forward_backward(batch, plain, normalizer)
    kept = torch.cat([p.grad.reshape(-1) for p in backend.model_for_export().parameters() if p.grad is not None])
    backend.zero_grad()
    # A zero KL coefficient keeps every row in the computation.
    backend.forward_backward(batch, LossConfig(use_kl_loss=True, kl_loss_coef=0.0), normalizer)
    whole = torch.cat([p.grad.reshape(-1) for p in backend.model_for_export().parameters() if p.grad is not None])
    backend.zero_grad()
    torch.testing.assert_close(kept, whole, rtol=1e-3, atol=1e-6)


def test_nan_at_masked_tokens_reaches_nothing(backend: SingleProcessBackend) -> None:
    batch = policy_batch(5)
    mask = batch.ragged("response_mask")
    clean = gradient(backend, [batch], global_normalizer(batch))
    for name in ("old_log_probs", "ref_log_probs", "advantages"):
        column = batch.ragged(name)
        batch = batch.with_column(name, Ragged(np.where(mask.values, column.values, np.nan), column.offsets))
    assert torch.equal(gradient(backend, [batch], global_normalizer(batch)), clean)


def test_missing_columns_are_named(backend: SingleProcessBackend) -> None:
    batch = grouped_batch()
    with pytest.raises(InvalidInputError, match="no column 'ref_log_probs'"):
        backend.forward_backward(batch, FULL_LOSS, global_normalizer(batch))
    bare = TrajectoryBatch(batch.table.drop_columns(["advantages"]))
    with pytest.raises(InvalidInputError, match="no column 'advantages'"):
        backend.forward_backward(bare, LossConfig(), global_normalizer(bare))
