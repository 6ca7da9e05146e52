"""Kinds of optimizers: the formula, what is decayed, and state that comes back bit for bit."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

from argosy.config.schema.optim import OPTIMIZERS as CONFIGURABLE
from argosy.trainer.optimizer import MasterOptimizer
from argosy.trainer.optimizer_kinds import OPTIMIZERS, is_undecayed
from argosy.trainer.options import OptimizerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import ConfigError


def options(**fields: Any) -> OptimizerOptions:
    return OptimizerOptions(Schedule(1.0), **({"grad_clip": 0.0} | fields))


def test_the_configuration_knows_the_same_kinds() -> None:
    assert set(CONFIGURABLE) == set(OPTIMIZERS)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_is_the_papers_formula(amsgrad: bool) -> None:
    """Loshchilov & Hutter 2019, algorithm 2, in float64 scalars; amsgrad: Reddi et al. 2018, algorithm 2."""
    betas, eps, decay, rates = (0.8, 0.9), 1e-3, 0.1, (0.1, 0.05, 0.2)
    gradients = ([0.5, -2.0], [-0.25, 1.0], [1.5, 0.0])
    parameter = nn.Parameter(torch.tensor([1.0, -3.0], dtype=torch.float64))
    optimizer = MasterOptimizer(
        {"w": parameter}, options(betas=betas, eps=eps, weight_decay=decay, override={"amsgrad": amsgrad})
    )
    for gradient, rate in zip(gradients, rates, strict=True):
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step(rate)

    for place, start in enumerate((1.0, -3.0)):
        weight, first, second, largest = start, 0.0, 0.0, 0.0
        for count, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
            weight -= rate * decay * weight
            first = betas[0] * first + (1 - betas[0]) * gradient[place]
            second = betas[1] * second + (1 - betas[1]) * gradient[place] ** 2
            largest = max(largest, second) if amsgrad else second
            root = math.sqrt(largest / (1 - betas[1] ** count)) + eps
            weight -= rate * first / (1 - betas[0] ** count) / root
        assert parameter[place].item() == pytest.approx(weight, rel=1e-9)


def test_norms_biases_and_embeddings_can_be_left_without_decay() -> None:
    names = {
        "model.embed_tokens.weight": (4, 2),
        "transformer.wte.weight": (4, 2),
        "embedding.word_embeddings.weight": (4, 2),
        "model.norm.weight": (2,),
        "model.layers.0.mlp.up_proj.bias": (2,),
        "model.layers.0.mlp.up_proj.weight": (2, 2),
        "lm_head.weight": (4, 2),
    }
    parameters = {name: nn.Parameter(torch.ones(shape)) for name, shape in names.items()}
    for all_decay in (True, False):
        optimizer = MasterOptimizer(parameters, options(weight_decay=0.5, no_decay_1d=not all_decay))
        optimizer.step(0.1)
        shrunk = {name for name, parameter in parameters.items() if parameter.max() < 1}
        decayed = {name for name, parameter in parameters.items() if not is_undecayed(name, parameter)}
        assert decayed == {"model.layers.0.mlp.up_proj.weight", "lm_head.weight"}
        assert shrunk == (set(names) if all_decay else decayed)
        for parameter in parameters.values():
            parameter.data.fill_(1.0)


def test_state_returns_whatever_the_groups_and_the_moments_are() -> None:
    """Saved with one grouping, loaded with another: state is by name."""
    torch.manual_seed(0)
    shapes = {"norm.weight": (3,), "up.weight": (3, 3)}
    first = {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    saved = MasterOptimizer(first, options(override={"amsgrad": True}))
    for parameter in first.values():
        parameter.grad = torch.randn_like(parameter)
    saved.step(0.1)
    second = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in first.items()}
    loaded = MasterOptimizer(second, options(override={"amsgrad": True}, no_decay_1d=True, weight_decay=0.0))
    state = saved.state_tensors()
    assert loaded.expected_state() == {name: tuple(tensor.shape) for name, tensor in state.items()}
    loaded.load_state_tensors(state)
    found = loaded.state_tensors()
    assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("impl", ["bitsandbytes", "torchao"])
def test_a_library_that_is_not_installed_is_named_with_the_command(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"{impl}.optim", None)
    with pytest.raises(ConfigError, match=f"pip install {impl}"):
        MasterOptimizer(
            {"w": nn.Parameter(torch.ones(2))}, options(optimizer="AdamW8bit", optimizer_impl=f"{impl}.optim")
        )


@pytest.mark.parametrize("impl", ["bitsandbytes", "torchao"])
def test_8_bit_moments_train_are_small_and_resume_bit_for_bit(impl: str) -> None:
    pytest.importorskip(f"{impl}.optim", exc_type=ImportError)
    settings = options(optimizer="AdamW8bit", optimizer_impl=f"{impl}.optim")

    def parameters() -> dict[str, nn.Parameter]:
        torch.manual_seed(0)
        return {"big": nn.Parameter(torch.randn(64, 256)), "small": nn.Parameter(torch.ones(8))}

    def steps(optimizer: MasterOptimizer, held: dict[str, nn.Parameter], *seeds: int) -> None:
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            for parameter in held.values():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            assert optimizer.step(1e-2).changed_share > 0.9

    unbroken_weights, plain_weights = parameters(), parameters()
    unbroken, plain = MasterOptimizer(unbroken_weights, settings), MasterOptimizer(plain_weights, options())
    steps(unbroken, unbroken_weights, 0, 1)
    steps(plain, plain_weights, 0, 1)
    state = {name: tensor.clone() for name, tensor in unbroken.state_tensors().items()}
    assert sum(tensor.nbytes for tensor in state.values()) < 0.4 * sum(
        tensor.nbytes for tensor in plain.state_tensors().values()
    )
    assert torch.allclose(unbroken_weights["big"], plain_weights["big"], atol=5e-3)

    resumed_weights = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in unbroken_weights.items()}
    resumed = MasterOptimizer(resumed_weights, settings)
    assert resumed.expected_state() == {name: tuple(tensor.shape) for name, tensor in state.items()}
    resumed.load_state_tensors(state)
    steps(unbroken, unbroken_weights, 2, 3)
    steps(resumed, resumed_weights, 2, 3)
    assert all(torch.equal(unbroken_weights[name], resumed_weights[name]) for name in resumed_weights)
