"""Log-probs, entropy and Σπ² of given tokens from hidden states, computed by the library."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from argosy.modeling.native.library import WIDTH, HeadStruct, Workspace, address, load_library


def can_run(hidden: Tensor, weight: Tensor, compute_dtype: torch.dtype) -> bool:
    """Whether the library can compute it."""
    return (
        compute_dtype == torch.bfloat16
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in (hidden, weight))
        and weight.is_contiguous()
        and hidden.shape[1] % WIDTH == 0
        and load_library() is not None
    )


def head_stats(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    workspace: Workspace,
    *,
    temperature: float,
    entropy: bool,
    sum_pi_squared: bool,
    add_to_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """log π, entropy and Σπ² of the targets, [M] each; the last two empty where they aren't wanted.

    As `argosy.modeling.log_probs.token_stats`, whose arguments these are.
    """
    function: Any = _Head.apply  # untyped in torch
    wanted = (entropy, sum_pi_squared)
    found: tuple[Tensor, Tensor, Tensor] = function(
        hidden, weight, targets, workspace, temperature, wanted, add_to_gradient
    )
    return found


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        workspace: Workspace,
        temperature: float,
        wanted: tuple[bool, bool],
        add_to_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden, targets = hidden.contiguous(), targets.contiguous()
        count = len(targets)
        log_probs, normalizers = hidden.new_empty(count), hidden.new_empty(count)
        entropies, squares = (hidden.new_empty(count if want else 0) for want in wanted)
        struct = _struct(hidden, weight, targets, temperature, normalizers, entropies if wanted[0] else None)
        struct.log_probs = address(log_probs)
        struct.squares = address(squares) if wanted[1] else None
        _call("argosy_head", struct, workspace)
        ctx.save_for_backward(hidden, weight, targets, normalizers, entropies)
        ctx.workspace, ctx.temperature, ctx.entropy, ctx.add = workspace, temperature, wanted[0], add_to_gradient
        ctx.mark_non_differentiable(squares)
        return log_probs, entropies, squares

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normalizers, entropies = ctx.saved_tensors
        there = weight.grad if ctx.add and weight.is_leaf and weight.grad is not None else None
        if there is not None and there.is_sparse:
            there = None
        fresh = torch.zeros_like(weight) if ctx.needs_input_grad[1] and there is None else None
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        struct = _struct(hidden, weight, targets, ctx.temperature, normalizers, entropies if ctx.entropy else None)
        of_log_probs, of_entropies = grads[0].contiguous(), grads[1].contiguous()
        struct.of_log_probs = address(of_log_probs)
        struct.of_entropies = address(of_entropies) if ctx.entropy else None
        struct.of_states = address(of_hidden)
        struct.of_weight = address(there if fresh is None else fresh) if ctx.needs_input_grad[1] else None
        _call("argosy_head_backward", struct, ctx.workspace)
        return of_hidden, fresh, None, None, None, None, None


def _struct(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, normalizers: Tensor, entropies: Tensor | None
) -> HeadStruct:
    return HeadStruct(
        rows=len(hidden),
        hidden=hidden.shape[1],
        vocab=len(weight),
        threads=torch.get_num_threads(),
        temperature=temperature,
        states=address(hidden),
        weight=address(weight),
        targets=address(targets),
        normalizers=address(normalizers),
        entropies=address(entropies),
    )


def _call(name: str, struct: HeadStruct, workspace: Workspace) -> None:
    library = load_library()
    assert library is not None, "asked for where `can_run` said so"
    reference = ctypes.byref(struct)
    struct.workspace = workspace.address(library.argosy_head_workspace(reference, name.endswith("_backward")))
    getattr(library, name)(reference)
