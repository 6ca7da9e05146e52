"""Products with backward passes of their own equal autograd's, and cast weights never outlive a change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from argosy.modeling.lean_products import gated_mlp, project
from argosy.modeling.weight_casts import WeightCasts


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("inputs", [3, 12])
def test_gradients_of_joined_projections_are_those_of_finite_differences(inputs: int) -> None:
    weights = [draw(4, inputs), draw(2, inputs)]

    def product(states: Tensor, *parts: Tensor) -> Tensor:
        return project(states, WeightCasts().get(parts, torch.float64), parts)

    states = draw(5, inputs)
    assert torch.equal(product(states, *weights), states @ torch.cat(weights).T)
    assert torch.autograd.gradcheck(product, (states, *weights))


def test_gradients_of_the_gated_network_are_those_of_finite_differences() -> None:
    gate, up, down = draw(6, 3), draw(6, 3), draw(3, 6)

    def network(states: Tensor, *weights: Tensor) -> Tensor:
        casts = WeightCasts()
        return gated_mlp(states, casts.get(weights[:2], torch.float64), casts.get(weights[2:], torch.float64), weights)

    states = draw(5, 3)
    plain = functional.linear(functional.silu(states @ gate.T) * (states @ up.T), down)
    torch.testing.assert_close(network(states, gate, up, down), plain)
    assert torch.autograd.gradcheck(network, (states, gate, up, down))


def test_a_frozen_weight_gets_no_gradient() -> None:
    first, second = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(2, 3), requires_grad=False)
    states = torch.randn(4, 3, requires_grad=True)
    project(states, WeightCasts().get([first, second], torch.float32), [first, second]).sum().backward()  # type: ignore[no-untyped-call]
    assert first.grad is not None
    assert second.grad is None


def test_weights_are_cast_once_in_a_scope_and_anew_after_it() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    casts = WeightCasts()
    assert casts.get([weight], torch.bfloat16) is not casts.get([weight], torch.bfloat16)
    with casts.fixed():
        with casts.fixed():
            kept = casts.get([weight], torch.bfloat16)
        assert casts.get([weight], torch.bfloat16) is kept
    with torch.no_grad():
        weight.fill_(2)
    with casts.fixed():
        assert bool((casts.get([weight], torch.bfloat16) == 2).all())
