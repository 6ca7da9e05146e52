"""Less memory and time for the same network in one process, where it computes in bfloat16 over float32 parameters.

Transformers' RMS norm gives float32 under autocast. Each of the two or three projections behind it then makes (and
keeps for the backward pass) its own bfloat16 copy, and the norm keeps a float32 one more. `LeanNorm` rounds once, to
the same values, and keeps its input, which is the residual stream, and one number per token.

A tied embedding's gradient is dense in PyTorch: a second [vocabulary, hidden] tensor, zeroed, filled at the tokens that
occur and added to the head's. As a sparse gradient it is added in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

NORMS_BEFORE_PROJECTIONS = ("input_layernorm", "post_attention_layernorm")
"""Attributes of a layer whose output goes into linear layers only, in the architectures below."""
LEAN_ARCHITECTURES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Values of `model_type` whose norm is x · rsqrt(mean x² + ε) · weight."""
BLOCK_ELEMENTS = 1 << 16
"""Elements that go through all of a norm's operations before the next ones: 256 KiB in float32, so that they stay in
the processor's cache."""


def make_lean(model: Any) -> None:
    """Replace what can be, in place; parameters stay the same objects under the same names.

    Does nothing for architectures that it doesn't know. Not for sharded models: their parameters are not plain tensors.
    """
    if getattr(model.config.get_text_config(), "model_type", "") in LEAN_ARCHITECTURES:
        for module in list(model.modules()):
            for name in NORMS_BEFORE_PROJECTIONS:
                norm: Any = getattr(module, name, None)
                if hasattr(norm, "variance_epsilon"):
                    setattr(module, name, LeanNorm(norm.weight, norm.variance_epsilon).train(norm.training))
    embedding = model.get_input_embeddings()
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # a critic has none
    if isinstance(embedding, nn.Embedding) and head is not None and head.weight is embedding.weight:
        embedding.sparse = True


class LeanNorm(nn.Module):
    """RMS norm (Zhang & Sennrich 2019, arXiv:1910.07467) that gives autocast's type at once."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[…, E] → […, E], in autocast's type where that is on, else as `hidden`."""
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        norm: Any = _RmsNorm.apply  # untyped in torch
        result: Tensor = norm(hidden, self.weight, self.variance_epsilon, dtype)
        return result


class _RmsNorm(torch.autograd.Function):
    """y = w · x̂ with x̂ = x · r and r = (mean x² + ε)^-½; ∂x = r · (w·∂y - x̂ · mean(w·∂y · x̂)), ∂w = Σ ∂y · x̂."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])  # [N, E]
        result = torch.empty(rows.shape, dtype=dtype, device=rows.device)
        inverse = torch.empty(len(rows), 1, dtype=torch.promote_types(torch.float32, rows.dtype), device=rows.device)
        for part in _blocks(rows):
            states = rows[part].to(inverse.dtype)
            inverse[part] = states.square().mean(1, keepdim=True).add_(eps).rsqrt_()
            result[part] = weight * (states * inverse[part]).to(hidden.dtype)
        ctx.save_for_backward(hidden, weight, inverse)
        return result.view(hidden.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, inverse = ctx.saved_tensors
        rows, slopes = (tensor.reshape(-1, hidden.shape[-1]) for tensor in (hidden, grads[0]))
        grad_rows = torch.empty_like(rows)
        grad_weight = torch.zeros(weight.shape, dtype=inverse.dtype, device=weight.device)
        for part in _blocks(rows):
            scale = inverse[part]
            unit = rows[part].to(scale.dtype) * scale  # x̂
            slope = slopes[part].to(scale.dtype)
            grad_weight += (slope * unit).sum(0)
            slope = slope * weight
            shrink = (slope * unit).mean(1, keepdim=True)
            grad_rows[part] = slope.sub_(unit.mul_(shrink)).mul_(scale)
        return grad_rows.view(hidden.shape), grad_weight.to(weight.dtype), None, None


def _blocks(rows: Tensor) -> Iterator[slice]:
    """Slices of [N, E] of about BLOCK_ELEMENTS each; all at once on a GPU, where a launch costs more than it saves."""
    size = max(1, BLOCK_ELEMENTS // rows.shape[1]) if rows.device.type == "cpu" else max(len(rows), 1)
    return (slice(start, start + size) for start in range(0, len(rows), size))
