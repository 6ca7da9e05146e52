"""Offloading on a CPU: the same hooks, from main memory to main memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy

from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import pack
from argosy.trainer.backends.building import enable_checkpointing
from argosy.trainer.parallel.offload import (
    ActivationOffload,
    install_activation_offload,
    move_state_around_steps,
    offload_activations,
    offload_optimizer,
    parameter_policy,
)
from support.training import grouped_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_with_activations_away_are_the_same_bits(tiny_folder: Path, checkpointing: bool) -> None:
    batch = grouped_batch()
    packed = pack(batch.ragged("prompt_ids"), batch.ragged("response_ids"))
    found = []
    offload = ActivationOffload("cpu", threshold_bytes=4096)
    for away in (False, True):
        model = load_causal_lm(ModelSource(str(tiny_folder), device="cpu"))
        if checkpointing:
            enable_checkpointing(model)
        if away:
            install_activation_offload(model.model, offload)
        for _ in range(2):
            stats = PackedModel(model).response_stats(packed, temperature=1.0)
            stats.log_probs.sum().backward()  # type: ignore[no-untyped-call]
        found.append([parameter.grad for parameter in model.parameters()])
    assert offload.moved_bytes > 0
    assert all(torch.equal(here, away) for here, away in zip(*found, strict=True))


def test_what_is_small_or_a_parameter_or_elsewhere_stays() -> None:
    layer = nn.Linear(64, 64)
    rows, few = torch.randn(32, 64, requires_grad=True), torch.randn(2, 64, requires_grad=True)
    for offload, inputs, moved in (
        (ActivationOffload("cpu", 4096), rows, 32 * 64 * 4),  # the input, and not the weight of twice its size
        (ActivationOffload("cpu", 4096), few, 0),
        (ActivationOffload("cuda", 0), rows, 0),
    ):
        with offload.hooks():
            layer(inputs).sum().backward()
        assert offload.moved_bytes == moved


def test_a_tensor_saved_by_three_operations_is_copied_once_unless_it_changed() -> None:
    offload = ActivationOffload("cpu", 0)
    scale = torch.ones((), requires_grad=True)
    with offload.hooks():
        rows = torch.ones(8, 8)
        total = (rows * scale).sum() + (rows * scale).sum()
        assert offload.moved_bytes == rows.nbytes
        rows.add_(1)
        total = total + (rows * scale).sum()
        assert offload.moved_bytes == 2 * rows.nbytes
        for _ in range(3):  # freed memory is used again: another tensor at the old one's address
            total = total + (torch.full((8, 8), 5.0) * scale).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert scale.grad is not None
    assert scale.grad.item() == 64 * (1 + 1 + 2 + 15)


def test_hooks_end_with_a_forward_that_fails() -> None:
    class Faulty(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            raise ValueError("no")

    module, offload = Faulty(), ActivationOffload("cpu", 0)
    install_activation_offload(module, offload)
    with pytest.raises(ValueError, match="no"):
        module(torch.ones(2))
    (torch.ones(4, requires_grad=True) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    assert offload.moved_bytes == 0


def test_optimizer_state_is_away_between_steps_and_the_steps_are_the_same() -> None:
    """The device "meta" would lose the numbers, so copies on the CPU stand for those in main memory."""
    weights = []
    for away in (False, True):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(3, 3))
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        if away:
            move_state_around_steps(optimizer, CPU)
        for step in range(3):
            weight.grad = torch.full_like(weight, float(step + 1))
            optimizer.step()
        weights.append(weight.detach())
    assert torch.equal(*weights)


def test_state_goes_home_after_a_step() -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    move_state_around_steps(optimizer, torch.device("meta"))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    assert {name: value.device.type for name, value in state.items()} == {
        "step": "cpu",
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }


def test_on_a_cpu_each_says_that_it_has_nothing_to_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    weight = nn.Parameter(torch.ones(2))
    assert not isinstance(parameter_policy(True, CPU), CPUOffloadPolicy)
    offload_optimizer(torch.optim.AdamW([weight]), CPU)
    offload_activations(nn.Linear(2, 2), CPU)
    lines = [record.message.split(" ", 1)[0] for record in caplog.records]
    assert lines == ["param_offload", "optimizer_offload", "enable_activation_offload"]
    assert isinstance(parameter_policy(True, torch.device("cuda")), CPUOffloadPolicy)
    assert not isinstance(parameter_policy(False, torch.device("cuda")), CPUOffloadPolicy)
