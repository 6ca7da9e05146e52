"""The model of a trainer and what is computed with it, made the same way for every backend.

What differs between a policy and a critic is here and in `Compute`; a backend only places tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from argosy.modeling.loading import load_causal_lm, resolve_dtype
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packed_network import PackedNetwork
from argosy.modeling.value_model import PackedValueModel, load_value_model
from argosy.trainer.backends.compute import Compute, PolicyCompute, ValueCompute
from argosy.trainer.lora import LoraAdapter, add_lora
from argosy.trainer.options import TrainerOptions


@dataclass(frozen=True, slots=True, eq=False)
class BuiltModel:
    """A model on its device, checked."""

    hf_model: Any
    """A transformers PreTrainedModel, or a `ValueModel`: holds the parameters, and has `save_pretrained`."""
    packed: PackedNetwork
    """Its packed forward; `evaluate` gives what its kind can compute."""
    compute: Compute
    """Its objective."""
    adapter: LoraAdapter | None = None
    """With LoRA: what trains."""


def build_model(options: TrainerOptions) -> BuiltModel:
    """Load the model of `options`, and compare its packed pass with its own.

    Raises InvalidInputError for a model that can't be loaded, InternalError for one that can't be trained packed.
    """
    built = _critic(options) if options.value_head else _policy(options)
    built.packed.self_check()
    if options.gradient_checkpointing:
        enable_checkpointing(built.hf_model)
    return built


def prepare_layers(model: Any, options: TrainerOptions, device: torch.device) -> None:
    """Compile layers and move activations away, as the options say. Before the layers are sharded.

    Raises ConfigError where there is no compiler.
    """
    base = getattr(model, model.base_model_prefix)
    if options.compile_layers:
        from argosy.trainer.parallel.compile import compile_layers  # brings in much of torch

        compile_layers(model, list(layers_of(base)), device)
    if options.offload.activations:
        from argosy.trainer.parallel.offload import offload_activations

        offload_activations(base, device)


def layers_of(base: Any) -> Iterator[nn.Module]:
    """The transformer layers, in order: modules of the kinds that transformers says must stay whole."""
    kinds = set(base._no_split_modules or ())
    found = [module for module in base.modules() if type(module).__name__ in kinds]
    if not found:
        lists = [list(module) for module in base.modules() if isinstance(module, nn.ModuleList)]
        found = max(lists, key=len, default=[])
    yield from found


def _policy(options: TrainerOptions) -> BuiltModel:
    hf_model = load_causal_lm(options.model)
    adapter = None if options.lora is None else add_lora(hf_model, options.lora, options.model.path)
    packed = PackedModel(hf_model, compute_dtype=compute_dtype_of(options), chunk_tokens=options.log_prob_chunk_tokens)
    return BuiltModel(hf_model, packed, PolicyCompute(packed, report_entropy=options.report_entropy), adapter)


def _critic(options: TrainerOptions) -> BuiltModel:
    hf_model = load_value_model(options.model)
    packed = PackedValueModel(hf_model, compute_dtype=compute_dtype_of(options))
    return BuiltModel(hf_model, packed, ValueCompute(packed))


def compute_dtype_of(options: TrainerOptions) -> torch.dtype:
    """Of forward and backward: float64 models (tests) compute in their own type."""
    return resolve_dtype(options.model.dtype if options.compute_dtype == "float32" else options.compute_dtype)


def enable_checkpointing(model: Any) -> None:
    """Recompute each layer in the backward pass.

    Transformers does it only for layers in train mode, which would wake dropout below them; so only the layers' own
    flags are set, and their children stay in eval mode (case B10).
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
