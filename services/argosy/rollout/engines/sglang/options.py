"""What can be set of the SGLang engine."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.types.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """How the server is started and watched."""

    model_path: str
    """A local Hugging Face folder with safetensors files."""
    dtype: str = "float32"
    """"float32" or "bfloat16"."""
    device: str = "auto"
    """"cpu", "cuda", or "auto": a GPU if there is one."""
    threads: int = 0
    """OpenMP threads of the server's scheduler; 0 leaves it to torch."""
    slot_count: int = 64
    """Samples that run at once."""
    max_model_len: int = 0
    """Most tokens of prompt and answer together; 0 takes the model's own context."""
    max_waiting: int = 65536
    """Samples that may wait for a slot; more is OverloadedError."""
    prefill_token_budget: int = 4096
    """Prompt tokens that one step computes at most."""
    kv_tokens: int = 0
    """Tokens of keys and values; 0: slot_count × max_model_len on a CPU, SGLang's choice on a GPU."""
    filter_tokens: int = 0
    """Most tokens that filters may leave at a position; 0: the vocabulary."""
    arguments: tuple[str, ...] = ()
    """More arguments for the server's command line."""
    start_timeout_s: float = 180.0
    """Seconds until the server must be ready."""
    call_timeout_s: float = 120.0
    """Seconds that a control call (pause, update of weights …) may take."""
    health_interval_s: float = 2.0
    """Seconds between two looks at the server."""
    health_timeout_s: float = 30.0
    """Seconds without a good look after which the engine has failed."""
    stop_grace_s: float = 3.0
    """Seconds that the server gets to end by itself."""
    seed: int = 0
    """Of the server's random stream."""
    lineage: str = "main"
    """Lineage of the version that the model's own files are: step 0."""
    start_stale: bool = False
    """Answer nothing until a weight update has come."""
    trust_remote_code: bool = False
    """Let the model's folder run its own code."""

    def __post_init__(self) -> None:
        for name, low in (
            ("slot_count", 1), ("max_waiting", 1), ("prefill_token_budget", 1), ("kv_tokens", 0), ("filter_tokens", 0),
            ("max_model_len", 0),
        ):  # fmt: skip
            if getattr(self, name) < low:
                raise InvalidInputError(f"sglang {name} must be at least {low}, got {getattr(self, name)}")
