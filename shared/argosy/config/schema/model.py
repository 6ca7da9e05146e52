"""`actor_rollout_ref.model.*`: the model that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """A Hugging Face causal language model, used by rollout, reference and trainer alike."""

    path: str = ""
    """Folder or hub name of the model. Required."""
    tokenizer_path: str | None = None
    """Folder or hub name of the tokenizer; null takes the model's own."""
    custom_chat_template: str | None = None
    """Jinja text used in place of the tokenizer's chat template; null keeps the tokenizer's."""
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model's config.json to replace when it is loaded, such as {rope_theta: 1000000.0}. (Not
    attn_implementation: attention is computed by Argosy's own packed and cached kernels.)"""
    trust_remote_code: bool = False
    """Let transformers run Python code that comes with the model's folder."""
    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory for about a third more time."""
