"""Reads the plainest Llama checkpoints without transformers: a server of one is up seconds earlier.

Importing transformers' model classes brings torch's compiler, its distributed tensors and sympy with it: more than half
of what a server of a small model spends from its start to its first token. So a checkpoint whose config.json and
tensors are exactly what is known here is read without them. Everything else is transformers' to load, or to refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from argosy.modeling.loading import ModelSource, check_model_path, resolve_device, resolve_dtype
from argosy.rollout.engines.hf.llama import LlamaConfig, LlamaForCausalLM

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_FIXED: Mapping[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
}
"""What must stand in config.json just so, or for the last three not at all."""
_OPTIONAL = ("attention_bias", "mlp_bias", "pretraining_tp")
_FOREIGN = ("quantization_config", "auto_map", "rope_scaling", "rope_theta", "partial_rotary_factor")
"""Keys whose presence makes a checkpoint another kind (or one written by a transformers before 5)."""


def load_llama(source: ModelSource) -> LlamaForCausalLM | None:
    """The model, frozen, on its device; None where the folder is not plainly one that this module computes.

    Raises InvalidInputError for a path that can't be a model, an unknown dtype or a device that can't be used.
    """
    check_model_path(source.path)
    dtype, device = resolve_dtype(source.dtype), resolve_device(source.device)
    folder = Path(source.path).expanduser()
    if not folder.is_dir() or source.trust_remote_code or source.override_config:
        return None
    config = _config_of(_json_of(folder / "config.json"))
    tensors = None if config is None else _tensors_of(folder)
    if config is None or tensors is None:
        return None
    model = LlamaForCausalLM(config, _json_of(folder / "generation_config.json"))
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    wanted = {name: tensor.shape for name, tensor in model.named_parameters()}
    if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
        return None
    for name, tensor in tensors.items():
        # A copy: the file's own pages must not change under us, and an engine that sleeps gives its memory back.
        whole = torch.empty(tensor.shape, dtype=dtype, device=device).copy_(tensor)
        owner = model.get_submodule(name.rpartition(".")[0])
        owner.register_parameter("weight", nn.Parameter(whole, requires_grad=False))
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.model.rotary_emb.to(device)
    return model.eval()


def _config_of(content: Mapping[str, Any]) -> LlamaConfig | None:
    """None for anything that isn't known to mean what this module does."""
    fixed = all(content.get(key, value if key in _OPTIONAL else None) == value for key, value in _FIXED.items())
    rope = content.get("rope_parameters")
    if not fixed or any(content.get(key) is not None for key in _FOREIGN) or not isinstance(rope, dict):
        return None
    if set(rope) != {"rope_theta", "rope_type"} or rope["rope_type"] != "default":
        return None
    sizes = [content.get(key) for key in _SIZES]
    if not all(type(size) is int and size > 0 for size in sizes):
        return None
    heads = int(content["num_attention_heads"])
    kv_heads = int(content.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        return None
    return LlamaConfig(
        vocab_size=int(content["vocab_size"]),
        hidden_size=int(content["hidden_size"]),
        intermediate_size=int(content["intermediate_size"]),
        num_hidden_layers=int(content["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=int(content.get("head_dim") or content["hidden_size"] // heads),
        rms_norm_eps=float(content.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope["rope_theta"]),
        max_position_embeddings=int(content.get("max_position_embeddings", 2048)),
        tie_word_embeddings=bool(content.get("tie_word_embeddings", False)),
        eos_token_id=content.get("eos_token_id"),
    )


def _tensors_of(folder: Path) -> dict[str, Tensor] | None:
    """Of a checkpoint in one file; None for any other, and for a file that can't be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Tensor] = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError):
        return None
    return found


def _json_of(file: Path) -> Mapping[str, Any]:
    """The object in a file; an empty one where there is none, whose fault transformers will tell."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
