"""Our options as vLLM's engine arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from argosy.modeling.loading import local_or_hub
from argosy.rollout.engines.vllm.facts import cache_bytes_per_token
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.types.errors import InvalidInputError

BLOCK_TOKENS = 128
"""vLLM's block of the cache on CPUs."""
_SPARE_BLOCKS = 8
"""Beyond what the running samples need: vLLM keeps one block for itself, and shared prompts may wait in the rest."""
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's max_lora_rank."""
_GPU_SHARE = 0.5
"""verl's default of gpu_memory_utilization."""
_EXTENSION = "argosy.rollout.engines.vllm.worker.WorkerExtension"
_BACKEND = "argosy-segment"
_OWN = {
    "logprobs_mode": "log-probs must be of the distribution sampled from",
    "weight_transfer_config": "weights come from the trainer",
    "worker_extension_cls": "argosy has its own",
    "skip_tokenizer_init": "token ids go in and out",
    "generation_config": "sampling is set in each request",
    "speculative_config": "draft models take no weight updates yet",
    "max_lora_rank": "set actor_rollout_ref.model.lora_rank",
    "max_loras": "there is one adapter, the policy's",
    "max_cpu_loras": "there is one adapter, the policy's",
}
"""Engine arguments that engine_kwargs can't set, and why."""
LORA = "enable_lora"
"""The engine argument that chooses vLLM's own LoRA in place of merged adapters."""
_ROLLOUT = "actor_rollout_ref.rollout"
_PLACES = {
    "model": "actor_rollout_ref.model.path",
    "dtype": "argosy.rollout.dtype",
    "max_model_len": f"{_ROLLOUT}.max_model_len",
    "max_num_seqs": f"{_ROLLOUT}.max_num_seqs",
    "max_num_batched_tokens": f"{_ROLLOUT}.max_num_batched_tokens",
    "tensor_parallel_size": f"{_ROLLOUT}.tensor_model_parallel_size",
    "gpu_memory_utilization": f"{_ROLLOUT}.gpu_memory_utilization",
    "enforce_eager": f"{_ROLLOUT}.enforce_eager",
    "enable_chunked_prefill": f"{_ROLLOUT}.enable_chunked_prefill",
    "enable_prefix_caching": f"{_ROLLOUT}.enable_prefix_caching",
    "trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "hf_overrides": "actor_rollout_ref.model.override_config",
}
"""Engine arguments that have a key of their own."""


def engine_arguments(options: VllmOptions, context_len: int, *, on_cpu: bool) -> dict[str, Any]:
    """Keywords of vLLM's AsyncEngineArgs.

    Raises:
        InvalidInputError: engine_kwargs sets what argosy sets.
    """
    chosen: dict[str, Any] = {
        "model": local_or_hub(options.model_path),
        "dtype": options.dtype,
        "max_model_len": context_len,
        "max_num_seqs": options.slot_count,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": runs_eager(options, on_cpu=on_cpu),
        "max_num_batched_tokens": _step_tokens(options, context_len),
        "enable_chunked_prefill": options.enable_chunked_prefill,
        "enable_prefix_caching": options.enable_prefix_caching,
        "trust_remote_code": options.trust_remote_code,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": _EXTENSION,
        "weight_transfer_config": {"backend": _BACKEND},
        "scheduling_policy": "priority",
        "disable_log_stats": True,  # only our own logger
    }
    if options.override_config:
        chosen["hf_overrides"] = dict(options.override_config)
    if options.lora_rank:
        chosen |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _room_for(options.lora_rank)}
    chosen |= _memory(options, context_len, on_cpu=on_cpu)
    return chosen | _extra(options)


def runs_eager(options: VllmOptions, *, on_cpu: bool) -> bool:
    """Whether it runs without captured graphs and compilation."""
    return on_cpu if options.enforce_eager is None else options.enforce_eager


def _step_tokens(options: VllmOptions, context_len: int) -> int:
    """vLLM counts a step's tokens all together, and without chunked prefill wants room for a whole prompt."""
    tokens = options.prefill_token_budget + options.slot_count
    return tokens if options.enable_chunked_prefill else max(tokens, context_len)


def _memory(options: VllmOptions, context_len: int, *, on_cpu: bool) -> dict[str, Any]:
    if options.gpu_memory_utilization is not None:
        return {"gpu_memory_utilization": options.gpu_memory_utilization, "enable_sleep_mode": not on_cpu}
    if not on_cpu:
        return {"gpu_memory_utilization": _GPU_SHARE, "enable_sleep_mode": True}
    blocks = options.slot_count * -(-context_len // BLOCK_TOKENS) + _SPARE_BLOCKS
    per_worker = cache_bytes_per_token(options) // options.tensor_parallel_size
    return {"kv_cache_memory_bytes": blocks * BLOCK_TOKENS * per_worker}


def _room_for(rank: int) -> int:
    """The least of vLLM's ranks that has room for it. InvalidInputError if none has."""
    for room in _RANKS:
        if room >= rank:
            return room
    raise InvalidInputError(
        f"actor_rollout_ref.model.lora_rank: got {rank}, and vLLM's own LoRA takes at most {_RANKS[-1]}; set "
        "actor_rollout_ref.rollout.engine_kwargs.vllm.enable_lora=false to have adapters merged"
    )


def _extra(options: VllmOptions) -> dict[str, Any]:
    if options.engine_kwargs.get(LORA) and not options.lora_rank:
        raise InvalidInputError(
            f"{_ROLLOUT}.engine_kwargs.vllm.{LORA}=true wants actor_rollout_ref.model.lora_rank, and that is 0"
        )
    given = {name: value for name, value in options.engine_kwargs.items() if value is not None and name != LORA}
    for name in given:
        reason = _OWN.get(name) or (f"set {_PLACES[name]}" if name in _PLACES else "")
        if reason:
            raise InvalidInputError(f"actor_rollout_ref.rollout.engine_kwargs.vllm.{name} can't be set: {reason}")
    return given


def check_known(arguments: Mapping[str, Any]) -> None:
    """Raise InvalidInputError on a name that this vLLM doesn't have. Called where vllm can be imported."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    for name in arguments.keys() - {field.name for field in dataclasses.fields(AsyncEngineArgs)}:
        raise InvalidInputError(
            f"actor_rollout_ref.rollout.engine_kwargs.vllm.{name}: this vLLM has no such engine argument"
        )
