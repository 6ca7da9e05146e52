"""vLLM behind our Protocol (`rollout.name=vllm`), on GPUs or on CPUs, in the same process as the rollout service.

    options.py      what may be set
    environment.py  vLLM as an importable package, and the environment variables that it reads
    facts.py        the model's tensors and end ids, from its folder
    arguments.py    our options as vLLM's engine arguments
    parameters.py   our sampling parameters as vLLM's
    launch.py       starts vLLM's processes
    engine.py       the Protocol: life, pause, sleep, weights
    flights.py      samples in flight: requests in, events out
    counts.py       how full its cache is, from vLLM's statistics
    receiving.py    collective transfers, which the first worker receives
    weights.py      weights on their way to the workers, and our copy of them
    lora.py         the engine with vLLM's own LoRA: adapters beside the weights
    segment.py      shared memory in which they lie
    worker.py       our part inside vLLM's worker processes: joins collectives, takes weights from the segment
    noise.py        our part inside vLLM's sampler: noise keyed by sample and position

Only worker.py and noise.py are imported by vLLM's own processes. Nothing else here imports vllm before `start`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.rollout.engines.events import Decode
    from argosy.rollout.engines.vllm.engine import VllmEngine
    from argosy.rollout.engines.vllm.options import VllmOptions

__all__ = ["make", "options_of"]


def make(config: Config, decode: Decode, *, start_stale: bool = True) -> VllmEngine:
    """The engine that a configuration asks for; `start` loads it."""
    from argosy.rollout.engines.vllm.engine import VllmEngine
    from argosy.rollout.engines.vllm.lora import VllmLoraEngine

    options = options_of(config, start_stale=start_stale)
    return VllmLoraEngine(options, decode) if options.lora_rank else VllmEngine(options, decode)


def options_of(config: Config, *, start_stale: bool = True) -> VllmOptions:
    """The engine's settings in a run's configuration."""
    from argosy.rollout.engines.vllm.options import VllmOptions

    kwargs = config.actor_rollout_ref.rollout.engine_kwargs.get("vllm") or {}
    service, rollout, model = config.argosy.rollout, config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    return VllmOptions(
        model_path=model.path,
        dtype=service.dtype,
        device=service.device,
        threads=config.argosy.threads_of("rollout"),
        slot_count=service.slot_count,
        max_waiting=service.max_waiting,
        max_model_len=rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length,
        tensor_parallel_size=rollout.tensor_model_parallel_size,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        enforce_eager=rollout.enforce_eager,
        prefill_token_budget=service.prefill_token_budget,
        enable_chunked_prefill=rollout.enable_chunked_prefill,
        enable_prefix_caching=rollout.enable_prefix_caching,
        engine_kwargs=kwargs,
        lora_rank=model.lora_rank if kwargs.get("enable_lora") else 0,
        lora_modules=tuple(model.target_modules),
        start_stale=start_stale,
        swap_timeout_s=config.argosy.rpc.deadline_s,
        trust_remote_code=model.trust_remote_code,
        override_config=model.override_config,
    )
