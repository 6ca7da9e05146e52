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
    enable_activation_offload: bool = False
    """Keep large tensors of the forward in main memory until the backward needs them. Without a GPU they are there
    already."""
    lora_rank: int = 0
    """Rank of a LoRA adapter that trains in place of the weights (needs peft); 0 trains all weights. Engines get the
    merged weights, and the reference is the same model with the adapter off: no reference service is started."""
    lora_alpha: int = 16
    """The adapter's update is multiplied by lora_alpha / lora_rank."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Linear layers that get an adapter: name endings such as [q_proj,v_proj], one regular expression, or "all-linear":
    all but the output head."""
    exclude_modules: tuple[str, ...] = ()
    """Layers to leave out: name endings, or one regular expression."""
    lora_adapter_path: str | None = None
    """Folder of an adapter in peft's format to start from, with its own alpha and layers. Turns LoRA on; lora_rank is
    then 0 or the adapter's."""

    @property
    def uses_lora(self) -> bool:
        """Whether an adapter trains in place of the weights."""
        return self.lora_rank > 0 or self.lora_adapter_path is not None
