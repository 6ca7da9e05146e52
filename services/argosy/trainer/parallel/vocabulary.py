"""Token statistics where each rank holds some rows of the output head: as `argosy.modeling.log_probs`, with sums over
ranks.

Dimension letters: M response tokens, E hidden size, V vocabulary, L = V / ranks rows here, C tokens of a chunk.

The head is never gathered: per chunk and token the ranks exchange their largest logit, then Σ exp, the target's logit
and what entropy and Σπ² need (Megatron-LM's vocabulary-parallel cross entropy, arXiv:1909.08053, section 3). Each rank
computes 1/ranks of the head's work and holds [C, L] logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from argosy.modeling.log_probs import TokenStats


def vocabulary_parallel_stats(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    group: ProcessGroup,
    *,
    temperature: float,
    chunk_tokens: int,
    compute_dtype: torch.dtype,
    entropy: bool = False,
    sum_pi_squared: bool = False,
) -> TokenStats:
    """Statistics of `targets` under softmax(hidden · Wᵀ / temperature); the same on every rank.

    Args:
        hidden: [M, E], equal on all ranks of the group. Its gradient is summed over them.
        weight: [L, E]: rows rank·L … rank·L + L - 1 of the output head.
        targets: [M] int64, of the whole vocabulary.
        group: The ranks that hold the head together.
        temperature, chunk_tokens, compute_dtype, entropy, sum_pi_squared: As in `token_stats`.
    """
    head: Any = _VocabularyParallelHead.apply  # untyped in torch
    log_probs, entropies, squares = head(
        hidden, weight, targets, group, temperature, chunk_tokens, compute_dtype, entropy, sum_pi_squared
    )
    return TokenStats(log_probs, entropies if entropy else None, squares if sum_pi_squared else None)


class _VocabularyParallelHead(torch.autograd.Function):
    """Local logits chunk by chunk in both directions; only [C] numbers cross ranks, and the gradient of `hidden`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        group: ProcessGroup,
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
        places, here = _local_targets(targets, len(weight), group)
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(compute_dtype)
            for start in range(0, count, chunk_tokens):
                part = slice(start, start + chunk_tokens)
                logits = _logits(hidden[part], head, temperature, accumulate)  # [C, L]
                top = logits.amax(1)
                dist.all_reduce(top, dist.ReduceOp.MAX, group)
                logits.sub_(top[:, None])
                chosen = torch.where(here[part], logits.gather(1, places[part, None])[:, 0], 0.0)
                weights = logits.exp()  # unnormalised π
                terms = [weights.sum(1), chosen]
                if want_squares:
                    terms.append(weights.square().sum(1))
                if want_entropy:
                    terms.append(weights.mul_(logits).sum(1))
                sums = torch.stack(terms)  # [2…4, C]
                dist.all_reduce(sums, group=group)
                total, log_total = sums[0], sums[0].log()
                log_probs[part] = sums[1] - log_total
                normalizers[part] = log_total + top
                if want_squares:
                    squares[part] = sums[2] / total.square()
                if want_entropy:
                    entropies[part] = log_total - sums[-1] / total
        ctx.save_for_backward(hidden, weight, places, here, normalizers, entropies)
        ctx.settings = (group, temperature, chunk_tokens, accumulate, want_entropy)
        ctx.head = head  # a cast of the weight is made once for both directions
        ctx.mark_non_differentiable(squares)
        return log_probs, entropies, squares

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_log_probs, grad_entropies, _ = grads
        hidden, weight, places, here, normalizers, entropies = ctx.saved_tensors
        group, temperature, chunk_tokens, accumulate, want_entropy = ctx.settings
        head = ctx.head
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(places), chunk_tokens):
                part = slice(start, start + chunk_tokens)
                states = hidden[part]
                log_pi = _logits(states, head, temperature, accumulate).sub_(normalizers[part, None])  # [C, L]
                slope = grad_log_probs[part, None]
                if want_entropy:  # ∂H/∂z = -π (log π + H)
                    slope = slope + (log_pi + entropies[part, None]).mul_(grad_entropies[part, None])
                slope = log_pi.exp_().mul_(slope).neg_()
                slope.scatter_add_(1, places[part, None], torch.where(here[part], grad_log_probs[part], 0.0)[:, None])
                slope = slope.div_(temperature).to(head.dtype)  # ∂loss/∂(h·Wᵀ), [C, L]
                if grad_hidden is not None:
                    grad_hidden[part] = slope @ head
                if grad_weight is not None:
                    grad_weight.add_(slope.T @ states.to(head.dtype))
        if grad_hidden is not None:
            dist.all_reduce(grad_hidden, group=group)
        return (grad_hidden, grad_weight, *[None] * 7)


def _local_targets(targets: Tensor, rows: int, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """[M] row of this rank's head (0 where it has none), [M] whether it has one."""
    places = targets - dist.get_rank(group) * rows
    here = (places >= 0) & (places < rows)
    return places * here, here


def _logits(hidden: Tensor, head: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """[C, L] in `dtype`, in memory of its own."""
    logits = (hidden.to(head.dtype) @ head.T).to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)
