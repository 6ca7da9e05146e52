"""`torch.compile` of a model's layers (`use_torch_compile`).

Each layer is compiled on its own, so that a model's layers share one compilation and FSDP can still gather each apart.
Numbers of rows change from micro-batch to micro-batch, so shapes are dynamic from the start. Attention stays as it is:
how many rectangles it computes depends on the batch, and its kernels are fused already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from argosy.types.errors import ConfigError

logger = logging.getLogger(__name__)


def check_compiler(device: torch.device) -> None:
    """Raises ConfigError if PyTorch can't compile for the device: on a CPU it needs a C++ compiler, on a GPU Triton."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise ConfigError(f"use_torch_compile needs Triton on a GPU, {_ELSE}")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ConfigError(
            f"use_torch_compile needs a C++ compiler on a CPU (set CXX, or install g++), {_ELSE}"
        ) from error


_ELSE = "and there is none; set actor_rollout_ref.actor.use_torch_compile=false"


def compile_layers(model: Any, layers: Sequence[nn.Module], device: torch.device, backend: str = "inductor") -> None:
    """Compile each layer in place at its first forward; names of parameters stay. Raises ConfigError as above.

    Args:
        model: The transformers model that the layers belong to.
        layers: In order.
        device: Where they compute.
        backend: Of `torch.compile`; "aot_eager" traces without generating code.
    """
    if backend == "inductor":
        check_compiler(device)
    _leave_attention_alone(model)
    for layer in layers:
        layer.compile(dynamic=True, backend=backend)
    logger.info("%d layers will be compiled at their first forward, which takes minutes on a CPU", len(layers))


def _leave_attention_alone(model: Any) -> None:
    """Give the model's attention function to transformers once more, marked as not to be traced."""
    from transformers import AttentionInterface

    name: str = model.config._attn_implementation
    untraced = torch.compiler.disable(AttentionInterface()[name])  # type: ignore[no-untyped-call]
    AttentionInterface.register(name, untraced)
