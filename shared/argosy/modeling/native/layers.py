"""A Llama-like decoder layer as one autograd function, computed by the library.

Between forward and backward it keeps its input alone where gradient checkpointing is on, and computes the rest again
without the output projections that nothing depends on; else also what attention reads and gives and the inner products
of the feed-forward network, in bfloat16.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from argosy.modeling.native.library import (
    MOST_HEAD_SIZE,
    WIDTH,
    AttentionStruct,
    LayerStruct,
    WeightsStruct,
    Workspace,
    address,
    load_library,
    pointers,
)
from argosy.modeling.packing import BlockLayout

PARAMETERS = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
"""Of a layer, in the library's order."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What the library must know of a layer beside its weights."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    size: int
    scaling: float
    eps: float

    @property
    def slots(self) -> int:
        """Queries, keys and values of a row."""
        return self.heads + 2 * self.kv_heads


class NativeLayer(nn.Module):
    """A decoder layer with the same parameters under the same names.

    Args:
        plain: The transformers layer: what runs wherever the library can't.
        shape: As `shape_of` found it.
        workspace: Shared by layers that run one after the other.
        add_to_gradient: Add gradients to a weight's `grad` in place where there is one. Only for plain `backward()`.
    """

    def __init__(self, plain: Any, shape: LayerShape, workspace: Workspace, add_to_gradient: bool) -> None:
        super().__init__()
        for name, child in plain.named_children():
            setattr(self, name, child)
        self.shape = shape
        # Beside the registered modules: parameters must not be found a second time.
        self.__dict__["plain"], self.__dict__["workspace"] = plain, workspace
        self.training = plain.training  # its own flag alone: below it dropout stays asleep (case B10)
        self.adds_to_gradient = add_to_gradient

    @property
    def gradient_checkpointing(self) -> bool:
        """As transformers set it on the plain layer."""
        return bool(self.__dict__["plain"].gradient_checkpointing)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """[1, N, E] → [1, N, E]."""
        layout, tables = kwargs.get("packed_layout"), kwargs.get("position_embeddings")
        if not self._can(hidden_states, layout):
            return self.__dict__["plain"](hidden_states, *args, **kwargs)
        weights = [self.get_parameter(name) for name in PARAMETERS]
        cosine, sine = (table[0].float().contiguous() for table in tables)  # type: ignore[union-attr]
        settings = _Settings(
            self.shape,
            layout,  # type: ignore[arg-type]
            cosine,
            sine,
            self.__dict__["workspace"],
            keep=torch.is_grad_enabled() and not self.gradient_checkpointing,
            add=self.adds_to_gradient,
        )
        function: Any = _Layer.apply  # untyped in torch
        return function(hidden_states[0].contiguous(), settings, *weights)[None]

    def _can(self, hidden: Tensor, layout: object) -> bool:
        return (
            hidden.device.type == "cpu"
            and hidden.dtype == torch.float32
            and torch.is_autocast_enabled("cpu")
            and torch.get_autocast_dtype("cpu") == torch.bfloat16
            and isinstance(layout, BlockLayout)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Settings:
    shape: LayerShape
    layout: BlockLayout
    cosine: Tensor
    sine: Tensor
    workspace: Workspace
    keep: bool
    add: bool


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, settings: _Settings, *weights: Tensor) -> Tensor:
        shape, rows = settings.shape, -(-len(hidden) // WIDTH) * WIDTH
        kept: list[Tensor] = []
        if settings.keep:
            widths = (shape.slots * shape.size, shape.heads * shape.size, 2 * shape.inner)
            kept = [hidden.new_empty(rows, width, dtype=torch.bfloat16) for width in widths]
            kept.append(hidden.new_empty(rows, shape.heads))
        result = torch.empty_like(hidden)
        struct = _struct(settings, len(hidden), weights, [None] * len(weights), kept)
        _call("argosy_layer", struct, settings.workspace, hidden, result)
        ctx.save_for_backward(hidden, *kept, *weights)
        ctx.settings, ctx.kept_count = settings, len(kept)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *more = ctx.saved_tensors
        kept, weights = more[: ctx.kept_count], more[ctx.kept_count :]
        settings: _Settings = ctx.settings
        added, fresh = [], []  # where the library adds; what is autograd's to add
        for weight, wanted in zip(weights, ctx.needs_input_grad[2:], strict=True):
            there = weight.grad if settings.add and weight.is_leaf else None
            made = torch.zeros_like(weight) if wanted and there is None else None
            fresh.append(made)
            added.append(None if not wanted else made if there is None else there)
        result = torch.empty_like(hidden)
        struct = _struct(settings, len(hidden), weights, added, kept)
        _call("argosy_layer_backward", struct, settings.workspace, hidden, grads[0].contiguous(), result)
        return result, None, *fresh


def _struct(settings: _Settings, rows: int, weights: Any, gradients: Any, kept: list[Tensor]) -> LayerStruct:
    shape, segments = settings.shape, settings.layout.segments
    attention = AttentionStruct(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        size=shape.size,
        scaling=shape.scaling,
        cos=address(settings.cosine),
        sin=address(settings.sine),
        segments=address(segments.rows),
        groups=address(segments.groups),
        group_count=len(segments.groups) - 1,
        longest=segments.longest,
    )
    projected, mixed, opened, normalizers = map(address, kept or (None, None, None, None))
    return LayerStruct(
        rows=rows,
        hidden=shape.hidden,
        inner=shape.inner,
        threads=torch.get_num_threads(),
        eps=shape.eps,
        attention=attention,
        weights=WeightsStruct(pointers(weights), pointers(gradients)),
        projected=projected,
        mixed=mixed,
        opened=opened,
        normalizers=normalizers,
    )


def _call(name: str, struct: LayerStruct, workspace: Workspace, *tensors: Tensor) -> None:
    library = load_library()
    assert library is not None, "native layers are only made where there is a library"
    reference = ctypes.byref(struct)
    struct.workspace = workspace.address(library.argosy_layer_workspace(reference, name.endswith("_backward")))
    getattr(library, name)(reference, *(tensor.data_ptr() for tensor in tensors))


def shape_of(layer: Any) -> LayerShape | None:
    """Of a lean layer (`argosy.modeling.lean`) that the library can compute; None for any other."""
    heads, mlp, norm = layer.self_attn.shape, layer.mlp, layer.input_layernorm
    found = LayerShape(
        hidden=mlp.gate_proj.in_features,
        inner=mlp.gate_proj.out_features,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        size=heads.size,
        scaling=heads.scaling,
        eps=float(norm.variance_epsilon),
    )
    parameters = [layer.get_parameter(name) for name in PARAMETERS]
    fits = all(value % WIDTH == 0 for value in (found.hidden, found.inner, found.size)) and found.size <= MOST_HEAD_SIZE
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" and p.is_contiguous() for p in parameters)
    same = norm.variance_epsilon == layer.post_attention_layernorm.variance_epsilon
    return found if fits and plain and same else None
