"""Linear layers and the gated feed-forward network of a lean model, with backward passes of their own.

Dimension letters: N rows, E inputs, O outputs, I inner size of the feed-forward network.

What autograd under autocast does operation by operation is done here on weights that are cast already: one product for
weights with the same input, no float32 copies in between, and of the feed-forward network only its input and the two
inner products are kept for the backward pass. Roundings come at the same places as in transformers under autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NARROW = 2
"""A weight gradient's first factor is transposed in memory before the product where it is so many times narrower than
the second: a product with a transposed first factor runs at half the rate on a CPU with AMX."""


def project(inputs: Tensor, cast: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """inputs [N, E] · castᵀ → [N, ΣO]; `cast` [ΣO, E] has the parameters `weights` [O_i, E] in the inputs' type."""
    function: Any = _Project.apply  # untyped in torch
    result: Tensor = function(inputs, cast, *weights)
    return result


def gated_mlp(inputs: Tensor, gate_up: Tensor, down: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """(silu(x·Gᵀ) ⊙ (x·Uᵀ))·Dᵀ (Shazeer 2020, arXiv:2002.05202), [N, E] → [N, E].

    Args:
        inputs: x.
        gate_up: G and U [2I, E] below one another, in the inputs' type.
        down: D [E, I], likewise.
        weights: The parameters G, U, D.
    """
    function: Any = _GatedMlp.apply  # untyped in torch
    result: Tensor = function(inputs, gate_up, down, *weights)
    return result


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, cast: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.cast, ctx.weights = cast, weights
        return functional.linear(inputs, cast)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        slope = grads[0]
        grad_inputs = slope @ ctx.cast if ctx.needs_input_grad[0] else None
        wanted = ctx.needs_input_grad[2:]
        return grad_inputs, None, *_weight_gradients(slope, inputs, ctx.weights, wanted)


class _GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, gate_up: Tensor, down: Tensor, *weights: Tensor) -> Tensor:
        inner = functional.linear(inputs, gate_up)  # [N, 2I]
        gate, up = inner.chunk(2, 1)
        ctx.save_for_backward(inputs, inner)
        ctx.casts, ctx.weights = (gate_up, down), weights
        return functional.linear(functional.silu(gate).mul_(up), down)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, inner = ctx.saved_tensors
        gate_up, down = ctx.casts
        slope = grads[0]
        gate, up = inner.chunk(2, 1)
        opened = functional.silu(gate)
        of_down = _weight_gradients(slope, opened * up, ctx.weights[2:], ctx.needs_input_grad[5:])
        slope = slope @ down  # [N, I]
        inner_slope = torch.empty_like(inner)
        gate_slope, up_slope = inner_slope.chunk(2, 1)
        torch.mul(slope, opened, out=up_slope)
        torch.ops.aten.silu_backward.grad_input(slope.mul_(up), gate, grad_input=gate_slope)
        grad_inputs = inner_slope @ gate_up if ctx.needs_input_grad[0] else None
        of_gate_up = _weight_gradients(inner_slope, inputs, ctx.weights[:2], ctx.needs_input_grad[3:5])
        return grad_inputs, None, None, *of_gate_up, *of_down


def _weight_gradients(
    slope: Tensor, inputs: Tensor, weights: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """slopeᵀ [ΣO, N] · inputs [N, E], cut into one gradient per weight, in its type; None where none is wanted."""
    if not any(wanted):
        return [None] * len(weights)
    transposed = slope.T
    if slope.device.type == "cpu" and slope.shape[1] * NARROW <= inputs.shape[1]:
        transposed = transposed.contiguous()
    parts = torch.split(transposed @ inputs, [len(weight) for weight in weights])
    return [part.to(weight.dtype) if want else None for part, weight, want in zip(parts, weights, wanted, strict=True)]
