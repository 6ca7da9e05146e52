"""Less memory and time for the same network in one process, where it computes in bfloat16 over float32 parameters.

Transformers' RMS norm gives float32 under autocast. Each of the two or three projections behind it then makes (and
keeps for the backward pass) its own bfloat16 copy, and the norm keeps a float32 one more. `LeanNorm` rounds once, to
the same values, and keeps its input, which is the residual stream, and one number per token.

`LeanMlp` and `LeanAttention` do the products of a layer on weights that are cast once (`lean_products`), and attention
over short sequences in blocks (`block_attention`). Outside autocast they leave everything to the layer as it was.

A tied embedding's gradient is dense in PyTorch: a second [vocabulary, hidden] tensor, zeroed, filled at the tokens that
occur and added to the head's. As a sparse gradient it is added in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from argosy.modeling.block_attention import HeadShape, block_attention
from argosy.modeling.lean_products import gated_mlp, project
from argosy.modeling.native.layers import NativeLayer, shape_of
from argosy.modeling.native.library import Workspace, load_library
from argosy.modeling.packing import BlockLayout
from argosy.modeling.weight_casts import WeightCasts

NORMS_BEFORE_PROJECTIONS = ("input_layernorm", "post_attention_layernorm")
"""Attributes of a layer whose output goes into linear layers only, in the architectures below."""
LEAN_ARCHITECTURES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Values of `model_type` whose norm is x · rsqrt(mean x² + ε) · weight."""
BLOCK_ELEMENTS = 1 << 18
"""Elements that go through all of a norm's operations before the next ones: 1 MiB in float32, so that they stay in the
processor's cache and each operation still has work for some threads."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Of an attention layer."""
GATED_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""Of a feed-forward network."""


def make_lean(model: Any, casts: WeightCasts | None = None) -> None:
    """Replace what can be, in place; parameters stay the same objects under the same names.

    Args:
        model: A transformers model.
        casts: Where cast weights are kept while they stay the same; None casts them at each use.

    Does nothing for architectures that it doesn't know. Not for sharded models: their parameters are not plain tensors.
    """
    if getattr(model.config.get_text_config(), "model_type", "") in LEAN_ARCHITECTURES:
        for module in list(model.modules()):
            _make_products_lean(module, casts or WeightCasts())
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
        dtype = _autocast_type(hidden) or hidden.dtype
        norm: Any = _RmsNorm.apply  # untyped in torch
        result: Tensor = norm(hidden, self.weight, self.variance_epsilon, dtype)
        return result


class LeanMlp(nn.Module):
    """A gated feed-forward network with the same parameters under the same names."""

    def __init__(self, plain: Any, casts: WeightCasts) -> None:
        super().__init__()
        for name in GATED_PROJECTIONS:
            setattr(self, name, getattr(plain, name))
        _hide(self, plain, casts)

    def forward(self, hidden: Tensor) -> Tensor:
        """[…, E] → […, E]."""
        plain: Any = self.__dict__["plain"]
        casts: WeightCasts = self.__dict__["casts"]
        weights = [getattr(self, name).weight for name in GATED_PROJECTIONS]
        dtype = _autocast_type(hidden)
        if dtype is None or dtype == weights[0].dtype:
            result: Tensor = plain(hidden)
            return result
        rows = hidden.to(dtype).reshape(-1, hidden.shape[-1])
        result = gated_mlp(rows, casts.get(weights[:2], dtype), casts.get(weights[2:], dtype), weights)
        return result.view(hidden.shape)


class LeanAttention(nn.Module):
    """An attention layer with the same parameters under the same names."""

    def __init__(self, plain: Any, casts: WeightCasts) -> None:
        super().__init__()
        for name in PROJECTIONS:
            setattr(self, name, getattr(plain, name))
        size = plain.head_dim
        self.shape = HeadShape(
            plain.q_proj.out_features // size, plain.k_proj.out_features // size, size, float(plain.scaling)
        )
        _hide(self, plain, casts)

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None, **kwargs: Any) -> tuple[Tensor, Any]:
        """[1, N, E] → [1, N, E], and None for the weights."""
        plain: Any = self.__dict__["plain"]
        casts: WeightCasts = self.__dict__["casts"]
        layout = kwargs.get("packed_layout")
        weights = [getattr(self, name).weight for name in PROJECTIONS]
        dtype = _autocast_type(hidden_states)
        if (
            dtype is None
            or dtype == weights[0].dtype
            or hidden_states.device.type != "cpu"
            or not (isinstance(layout, BlockLayout) and layout.blocks)
        ):
            result: tuple[Tensor, Any] = plain(hidden_states, position_embeddings=position_embeddings, **kwargs)
            return result
        cosine, sine = (table[0] for table in position_embeddings)  # [N, D]
        projected = project(hidden_states[0].to(dtype), casts.get(weights[:3], dtype), weights[:3])
        mixed = block_attention(projected, cosine, sine, layout, self.shape)
        return project(mixed, casts.get(weights[3:], dtype), weights[3:])[None], None


def make_native(model: Any, workspace: Workspace, *, add_to_gradient: bool = False) -> int:
    """Replace the layers that the compiled library can compute (`argosy.modeling.native`), in place; returns how many.

    After `make_lean`, whose forms run wherever the library can't: outside autocast to bfloat16.

    Args:
        model: A transformers model.
        workspace: Where the library works.
        add_to_gradient: As `argosy.modeling.log_probs.token_stats` has it, for the layers' weights.
    """
    if load_library() is None:
        return 0
    count = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(getattr(layer, "self_attn", None), LeanAttention) and isinstance(layer.mlp, LeanMlp):
                norms = (getattr(layer, norm, None) for norm in NORMS_BEFORE_PROJECTIONS)
                shape = shape_of(layer) if all(isinstance(norm, LeanNorm) for norm in norms) else None
                if shape is not None:
                    setattr(parent, name, NativeLayer(layer, shape, workspace, add_to_gradient))
                    count += 1
    return count


def _make_products_lean(module: nn.Module, casts: WeightCasts) -> None:
    mlp: Any = getattr(module, "mlp", None)
    if _plain_linears(mlp, GATED_PROJECTIONS) and _is_silu(mlp):
        module.mlp = LeanMlp(mlp, casts).train(mlp.training)
    attention: Any = getattr(module, "self_attn", None)
    if _plain_linears(attention, PROJECTIONS) and _is_simple(attention):
        module.self_attn = LeanAttention(attention, casts).train(attention.training)


def _plain_linears(module: Any, names: tuple[str, ...]) -> bool:
    """Whether all are linear layers without bias and adapter."""
    found = [getattr(module, name, None) for name in names]
    return all(type(linear) is nn.Linear and linear.bias is None for linear in found)


def _is_silu(mlp: Any) -> bool:
    return isinstance(mlp, nn.Module) and getattr(getattr(mlp, "config", None), "hidden_act", "") in ("silu", "swish")


def _is_simple(attention: Any) -> bool:
    """Whether nothing is between the projections and full causal attention but the rotation."""
    if getattr(attention, "attention_dropout", 0.0):
        return False
    window = getattr(attention, "sliding_window", None) or getattr(attention.config, "sliding_window", None)
    return window is None and not hasattr(attention, "q_norm")


def _hide(module: nn.Module, plain: nn.Module, casts: WeightCasts) -> None:
    """Keep both beside the registered modules: the parameters must not be found a second time."""
    module.__dict__["plain"], module.__dict__["casts"] = plain, casts


def _autocast_type(tensor: Tensor) -> torch.dtype | None:
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


class _RmsNorm(torch.autograd.Function):
    """y = w · x̂ with x̂ = x · r and r = (mean x² + ε)^-½; ∂x = r · (w·∂y - x̂ · mean(w·∂y · x̂)), ∂w = Σ ∂y · x̂."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])  # [N, E]
        result = torch.empty(rows.shape, dtype=dtype, device=rows.device)
        inverse = torch.empty(len(rows), 1, dtype=torch.promote_types(torch.float32, rows.dtype), device=rows.device)
        for part in _blocks(rows):
            states = rows[part].to(inverse.dtype)
            inverse[part] = states.square().mean(1, keepdim=True).add_(eps).rsqrt_()  # bit for bit as transformers
            unit = states * inverse[part]
            result[part] = weight * unit if unit.dtype == hidden.dtype else weight * unit.to(hidden.dtype)
        ctx.save_for_backward(hidden, weight, inverse)
        return result.view(hidden.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, inverse = ctx.saved_tensors
        rows, slopes = (tensor.reshape(-1, hidden.shape[-1]) for tensor in (hidden, grads[0]))
        grad_rows = torch.empty_like(rows)
        grad_weight = torch.zeros(weight.shape, dtype=inverse.dtype, device=weight.device)
        for part in _blocks(rows):
            scale, states = inverse[part], rows[part].to(inverse.dtype)
            slope = slopes[part].to(scale.dtype)
            product = slope * states
            grad_weight += product.T @ scale[:, 0]
            # x̂ · mean(w·∂y · x̂) · r = x · r³ · mean(w·∂y · x)
            shrink = (product @ weight.to(scale.dtype))[:, None].mul_(scale**3).div_(rows.shape[1])
            grad_rows[part] = (slope * weight).mul_(scale).addcmul_(states, shrink, value=-1)
        return grad_rows.view(hidden.shape), grad_weight.to(weight.dtype), None, None


def _blocks(rows: Tensor) -> Iterator[slice]:
    """Slices of [N, E] of about BLOCK_ELEMENTS each; all at once on a GPU, where a launch costs more than it saves."""
    size = max(1, BLOCK_ELEMENTS // rows.shape[1]) if rows.device.type == "cpu" else max(len(rows), 1)
    return (slice(start, start + size) for start in range(0, len(rows), size))
