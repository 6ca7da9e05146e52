"""What may be set of the vLLM engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.types.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """The vLLM engine's settings; names as in the configuration."""

    model_path: str
    """Folder or hub name of a causal LM."""
    dtype: str = "float32"
    """"float32", "bfloat16" or "float16"."""
    device: str = "auto"
    """"auto", or the one that this vLLM is built for: "cpu" or "cuda"."""
    threads: int = 0
    """OpenMP threads of a worker; 0 leaves it to vLLM."""
    slot_count: int = 64
    """Samples that run at once (vLLM's max_num_seqs), ≥ 1."""
    max_model_len: int = 0
    """Most tokens of prompt and answer together; 0 takes the model's own context."""
    max_waiting: int = 65536
    """Samples that may wait for a slot; more is OverloadedError."""
    tensor_parallel_size: int = 1
    """Worker processes that divide each matrix."""
    gpu_memory_utilization: float | None = None
    """Share of a device's memory for weights and cache. None: 0.5 on GPUs; on CPUs a cache of just the size that
    slot_count samples of full length need."""
    enforce_eager: bool | None = None
    """Run without captured graphs and compilation; None: on CPUs."""
    prefill_token_budget: int = 4096
    """Tokens of one step, beside those of the running samples."""
    enable_chunked_prefill: bool = True
    """Compute long prompts in pieces, between decode steps."""
    enable_prefix_caching: bool = True
    """Compute equal beginnings of prompts once."""
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """More engine arguments by vLLM's names. Those that we set ourselves are refused."""
    lora_rank: int = 0
    """Keep a LoRA adapter of at most this rank beside the weights; 0: adapters come merged into them."""
    lora_modules: tuple[str, ...] = ()
    """Names of modules that it may have, without their layers'; empty or "all-linear": any."""
    lineage: str = "main"
    """Lineage of the version that the model's own files are: step 0."""
    start_stale: bool = False
    """Answer nothing until a weight update has come (a newcomer to a run: case D11)."""
    swap_timeout_s: float = 600.0
    """Seconds that the workers may take to put new weights in; then the engine has failed."""
    trust_remote_code: bool = False
    """Let the model's folder run its own code."""
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the model's config to change, as trainer and reference do."""


def check_options(options: VllmOptions) -> None:
    """Raise InvalidInputError that names the field."""
    counts = ("slot_count", "max_waiting", "tensor_parallel_size", "prefill_token_budget")
    for name in counts:
        if getattr(options, name) < 1:
            raise InvalidInputError(f"rollout {name} must be at least 1, got {getattr(options, name)}")
    if options.max_model_len < 0 or options.max_model_len == 1:
        raise InvalidInputError(f"rollout max_model_len must be 0 or at least 2, got {options.max_model_len}")
    share = options.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise InvalidInputError(f"rollout gpu_memory_utilization must be in (0, 1], got {share}")
