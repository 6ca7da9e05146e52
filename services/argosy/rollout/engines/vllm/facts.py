"""The model's tensors and end ids as the trainer sees them, from its folder, without loading its weights."""

from __future__ import annotations

import contextlib
from typing import Any

from argosy.modeling.loading import check_model_path, local_or_hub
from argosy.rollout.engines.base import ModelFacts
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.types.errors import InvalidInputError
from argosy.weightsync.manifest import TensorShape


def read_facts(options: VllmOptions) -> ModelFacts:
    """Facts of the model at `options.model_path`.

    Raises:
        InvalidInputError: no such model, or transformers doesn't know it.
    """
    model = _empty_model(options)
    state = model.state_dict(keep_vars=True)
    owners: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        # On the meta device nothing has an address: what is shared is the very same Parameter.
        owner = owners.setdefault(id(tensor), name)
        if owner != name:
            tied[name] = owner
    config = model.config.get_text_config()
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    shapes = {
        name: TensorShape(tuple(tensor.shape), _held_dtype(tensor, options.dtype)) for name, tensor in state.items()
    }
    own_context = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
    return ModelFacts(
        shapes=shapes,
        tied=tied,
        casts=[("float32", options.dtype)] if options.dtype != "float32" else [],
        vocab_size=vocab_size,
        context_len=min(options.max_model_len or own_context, own_context),
        eos_token_ids=frozenset(token for token in _eos_ids(model, options) if 0 <= token < vocab_size),
    )


def cache_bytes_per_token(options: VllmOptions) -> int:
    """Bytes of keys and values that one token takes over all layers, in the model's dtype."""
    config = _config(options).get_text_config()
    heads = int(config.num_attention_heads)
    head_size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return 2 * int(config.num_hidden_layers) * kv_heads * head_size * (4 if options.dtype == "float32" else 2)


def _held_dtype(tensor: Any, dtype: str) -> str:
    return dtype if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")


def _config(options: VllmOptions) -> Any:
    import transformers

    check_model_path(options.model_path)
    try:
        return transformers.AutoConfig.from_pretrained(
            local_or_hub(options.model_path),
            trust_remote_code=options.trust_remote_code,
            **{key: value for key, value in options.override_config.items() if key != "attn_implementation"},
        )
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(f"model {options.model_path!r} can't be loaded: {error}") from error


def _empty_model(options: VllmOptions) -> Any:
    import torch
    import transformers

    config = _config(options)
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, trust_remote_code=options.trust_remote_code, dtype=torch.float32
            )
    except (ValueError, KeyError, ImportError) as error:
        raise InvalidInputError(f"model {options.model_path!r} is no causal LM: {error}") from error
    model.tie_weights()
    return model


def _eos_ids(model: Any, options: VllmOptions) -> set[int]:
    """Every id that ends an answer: generation_config.json's and config.json's, each a number, a list or nothing."""
    import transformers

    holders: list[Any] = [model.config, model.config.get_text_config()]
    with contextlib.suppress(OSError):  # a model without generation_config.json
        holders.append(transformers.GenerationConfig.from_pretrained(local_or_hub(options.model_path)))
    found: set[int] = set()
    for holder in holders:
        value = getattr(holder, "eos_token_id", None)
        if value is not None:
            found.update([int(value)] if isinstance(value, int) else map(int, value))
    return found
