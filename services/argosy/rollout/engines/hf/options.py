"""The embedded engine's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.types.errors import InvalidInputError

_LEAST = {"slot_count": 1, "prefill_token_budget": 1, "max_waiting": 1, "prefix_token_budget": 0, "kv_token_count": 0}


@dataclass(frozen=True, slots=True)
class HfRolloutOptions:
    """Settings of the embedded engine, and of the core that serves it."""

    model_path: str
    """Folder or hub name of a causal LM."""
    dtype: str = "float32"
    """A name in `argosy.modeling.loading.DTYPES`."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:N", or "auto": a GPU if there is one."""
    threads: int = 0
    """Compute threads of the engine; 0 leaves it to torch."""
    slot_count: int = 64
    """Samples that run at once, ≥ 1."""
    max_model_len: int = 0
    """Most tokens of prompt and answer together; 0 takes the model's own context."""
    kv_token_count: int = 0
    """Tokens whose keys and values running samples may need at most; 0: slot_count × max_model_len, or what half of the
    free memory holds if that is less."""
    max_waiting: int = 65536
    """Samples that may wait for a slot; more is OverloadedError."""
    prefill_token_budget: int = 4096
    """Prompt tokens that one step computes at most; a longer prompt comes in pieces, decode steps between them."""
    prefix_token_budget: int = 8192
    """Prompt tokens whose keys and values are kept for sharing; 0 shares only among samples admitted together."""
    native_kernels: bool = True
    """Compute decode steps with the compiled library where model, CPU and compiler allow it (see `native/`)."""
    deterministic: bool = False
    """Answer the calls of `generate` one after another, each admitted in sample-id order: bit for bit repeatable."""
    stream_interval_tokens: int = 16
    """Tokens of a sample between two runs that are told of it: what is lost at most when this server dies."""
    stall_timeout_s: float = 120.0
    """Seconds that the engine may stand still before the server says that it is stuck."""
    lineage: str = "main"
    """Lineage of the version that the model's own files are: step 0."""
    start_stale: bool = False
    """Answer nothing until a weight update has come (a newcomer to a run: case D11)."""
    trust_remote_code: bool = False
    """Let the model's folder run its own code."""
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the model's config to change, as trainer and reference do."""

    def check(self) -> None:
        """InvalidInputError names a setting that is out of bounds."""
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise InvalidInputError(f"rollout {name} must be at least {least}, got {getattr(self, name)}")
        if self.max_model_len < 0 or self.max_model_len == 1:
            raise InvalidInputError(f"rollout max_model_len must be 0 or at least 2, got {self.max_model_len}")
