"""From a model folder to a model that the engine can run, or a refusal that says why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from argosy.modeling.loading import ModelSource, load_plain
from argosy.rollout.engines.hf.attention import ATTENTION_NAME, register
from argosy.rollout.engines.hf.llama import LlamaForCausalLM
from argosy.rollout.engines.hf.llama_loading import load_llama
from argosy.rollout.engines.hf.native.model import NativeDecoder
from argosy.types.errors import InvalidInputError

_UNSUPPORTED = {
    "attn_logit_softcapping": "soft-capped attention logits",
    "attention_chunk_size": "chunked attention",
}
"""Config keys that change attention in ways that this engine's attention function doesn't compute."""
_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal LM whose attention goes through the engine, and the few numbers that the engine needs of it."""

    module: nn.Module
    """Called with input_ids, position_ids and argosy_plan."""
    backbone: nn.Module
    """The same without the head, for prefill."""
    layer_count: int
    kv_head_count: int
    head_size: int
    vocab_size: int
    context_len: int
    """The model's own limit (max_position_embeddings)."""
    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    native: NativeDecoder | None = None
    """Computes decode steps in the module's place."""


def load_module(source: ModelSource) -> nn.Module:
    """Load a causal LM, frozen and not yet routed through the engine (`adopt`).

    Raises InvalidInputError as `load_plain`, and for a model with layers that this engine can't run.
    """
    plain = load_llama(source)
    if plain is not None:
        return plain
    module: Any = load_plain(source)
    _check_supported(module, module.config.get_text_config())
    loaded: nn.Module = module.requires_grad_(False)
    return loaded


def adopt(module: Any, *, native_kernels: bool = True) -> LoadedModel:
    """Route a causal LM's attention through the engine. The model must be this engine's own: it is changed in place.

    Args:
        native_kernels: Let the library of `native/` compute decode steps, where it can.
    """
    config = module.config.get_text_config()
    if not isinstance(module, LlamaForCausalLM):  # that one takes the engine's plans as it is
        register()
        module.set_attn_implementation(ATTENTION_NAME)
    weight: torch.Tensor = module.get_input_embeddings().weight
    head_count = int(config.num_attention_heads)
    vocab_size = int(module.get_output_embeddings().weight.shape[0])
    return LoadedModel(
        module=module,
        backbone=module.base_model,
        layer_count=int(config.num_hidden_layers),
        kv_head_count=int(getattr(config, "num_key_value_heads", None) or head_count),
        head_size=int(getattr(config, "head_dim", None) or config.hidden_size // head_count),
        vocab_size=vocab_size,
        context_len=int(getattr(config, "max_position_embeddings", None) or 1 << 30),
        eos_token_ids=frozenset(token for token in eos_ids(module) if 0 <= token < vocab_size),
        dtype=weight.dtype,
        device=weight.device,
        native=NativeDecoder.of(module) if native_kernels else None,
    )


def eos_ids(module: Any) -> frozenset[int]:
    """Every id that ends an answer: generation_config's and config's, each a number, a list or nothing (case D9)."""
    found: set[int] = set()
    for holder in (getattr(module, "generation_config", None), module.config, module.config.get_text_config()):
        value = getattr(holder, "eos_token_id", None)
        if value is not None:
            found.update([int(value)] if isinstance(value, int) else map(int, value))
    return frozenset(found)


def _check_supported(module: Any, config: Any) -> None:
    name = type(module).__name__
    reasons = []
    if not getattr(module, "_supports_attention_backend", False):
        reasons.append("its attention can't be replaced (transformers' AttentionInterface)")
    reasons += [what for key, what in _UNSUPPORTED.items() if getattr(config, key, None) is not None]
    other = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if other:
        reasons.append(f"layers of type {sorted(other)}")
    if bool(getattr(config, "is_encoder_decoder", False)):
        reasons.append("an encoder")
    if reasons:
        raise InvalidInputError(
            f"the embedded rollout engine can't run {name}: it has {'; '.join(reasons)}. "
            "Use another engine (actor_rollout_ref.rollout.name) for this model."
        )
