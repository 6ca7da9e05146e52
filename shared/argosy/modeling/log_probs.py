"""Log-probs of given tokens, entropy and Σπ² from hidden states, without ever holding [tokens, vocabulary].

Dimension letters: M response tokens, E hidden size, V vocabulary, C tokens of a chunk.

With logits z = h·Wᵀ / temperature and π = softmax(z):
    log π_y = z_y - lse(z)          ∂/∂z_v = 1[v = y] - π_v
    H       = lse(z) - Σ_v π_v z_v  ∂/∂z_v = -π_v (log π_v + H)
    Σ_v π_v²                        (not differentiated: it only serves advantage baselines)

The forward keeps one number per token; the backward computes each chunk's logits once more. Peak memory is therefore
C·V, whatever M is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenStats:
    """One value per response token, [M]."""

    log_probs: Tensor
    """log π(token), of logits / temperature."""
    entropy: Tensor | None = None
    """Of the same distribution, in nats."""
    sum_pi_squared: Tensor | None = None
    """Σ_v π_v², without gradient."""


def token_stats(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    compute_dtype: torch.dtype | None = None,
    entropy: bool = False,
    sum_pi_squared: bool = False,
) -> TokenStats:
    """Statistics of `targets` under softmax(hidden · weightᵀ / temperature).

    Args:
        hidden: [M, E], of the position before each target.
        weight: The output head [V, E].
        targets: [M] int64.
        temperature: Logits are divided by it; > 0.
        chunk_tokens: Tokens whose logits exist at one time (C).
        compute_dtype: Of the matrix products; None = hidden's. Softmax and sums are at least float32.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    head: Any = _ChunkedHead.apply  # untyped in torch
    log_probs, entropies, squares = head(
        hidden, weight, targets, temperature, chunk_tokens, compute_dtype or hidden.dtype, entropy, sum_pi_squared
    )
    return TokenStats(log_probs, entropies if entropy else None, squares if sum_pi_squared else None)


class _ChunkedHead(torch.autograd.Function):
    """Output head and softmax statistics, chunk by chunk in both directions."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk_tokens: int,
        compute_dtype: torch.dtype,
        want_entropy: bool,
        want_squares: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = len(targets)
        accumulate = torch.promote_types(torch.float32, hidden.dtype)
        log_probs = torch.empty(count, dtype=accumulate, device=hidden.device)
        normalizers = torch.empty_like(log_probs)  # lse(z)
        entropies = torch.empty_like(log_probs) if want_entropy else log_probs.new_empty(0)
        squares = torch.empty_like(log_probs) if want_squares else log_probs.new_empty(0)
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(compute_dtype)
            for start in range(0, count, chunk_tokens):
                part = slice(start, start + chunk_tokens)
                logits = _logits(hidden[part], head, temperature, accumulate)  # [C, V]
                top = logits.amax(1)
                logits.sub_(top[:, None])
                chosen = logits.gather(1, targets[part, None])[:, 0]
                weights = logits.exp() if want_entropy else logits.exp_()  # unnormalised π
                total = weights.sum(1)
                log_total = total.log()
                log_probs[part] = chosen - log_total
                normalizers[part] = log_total + top
                if want_squares:
                    squares[part] = weights.square().sum(1) / total.square()
                if want_entropy:
                    entropies[part] = log_total - weights.mul_(logits).sum(1) / total
        ctx.save_for_backward(hidden, weight, targets, normalizers, entropies)
        ctx.settings = (temperature, chunk_tokens, accumulate, want_entropy)
        ctx.head = head  # a cast of the weight is made once for both directions
        ctx.mark_non_differentiable(squares)
        return log_probs, entropies, squares

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_log_probs, grad_entropies, _ = grads
        hidden, weight, targets, normalizers, entropies = ctx.saved_tensors
        temperature, chunk_tokens, accumulate, want_entropy = ctx.settings
        head = ctx.head
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(targets), chunk_tokens):
                part = slice(start, start + chunk_tokens)
                states = hidden[part]
                log_pi = _logits(states, head, temperature, accumulate).sub_(normalizers[part, None])  # [C, V]
                if want_entropy:
                    pi = log_pi.exp()
                    scale = log_pi.add_(entropies[part, None]).mul_(grad_entropies[part, None])
                    slope = scale.add_(grad_log_probs[part, None]).mul_(pi).neg_()
                else:
                    slope = log_pi.exp_().mul_(-grad_log_probs[part, None])
                slope.scatter_add_(1, targets[part, None], grad_log_probs[part, None])
                slope = slope.div_(temperature).to(head.dtype)  # ∂loss/∂(h·Wᵀ), [C, V]
                if grad_hidden is not None:
                    grad_hidden[part] = slope @ head
                if grad_weight is not None:
                    _add_product(grad_weight, slope, states.to(head.dtype))
        return grad_hidden, grad_weight, None, None, None, None, None, None


def _logits(hidden: Tensor, head: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """[C, V] in `dtype`, in memory of its own."""
    logits = (hidden.to(head.dtype) @ head.T).to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _add_product(total: Tensor, slope: Tensor, states: Tensor) -> None:
    """total [V, E] += slopeᵀ [V, C] · states [C, E], summed in total's own precision."""
    if total.dtype == slope.dtype:
        total.addmm_(slope.T, states)
    else:
        total.add_(slope.T @ states)
