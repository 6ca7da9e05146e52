"""Keys that only some engines have, set where no server runs such an engine: the run starts and says so."""

from __future__ import annotations

from collections.abc import Iterator

from argosy.config.lookup import show
from argosy.config.schema import Config, RolloutConfig
from argosy.config.validate.agents import unused_by_agents
from argosy.config.validate.recording import unused_in_replay
from argosy.types.errors import ConfigError

_ROLLOUT = "actor_rollout_ref.rollout"
_ONLY_VLLM = {
    "tensor_model_parallel_size": "the embedded engine is one process",
    "gpu_memory_utilization": "the embedded engine takes memory for argosy.rollout.kv_tokens, not a share of the GPU",
    "enforce_eager": "the embedded engine never captures graphs",
    "enable_chunked_prefill": "prefill is bounded by argosy.rollout.prefill_token_budget",
    "enable_prefix_caching": "a group's prompt is always computed once",
}
"""Field → why the embedded engine has no use for it."""
_DONE_ANYWAY = {"enforce_eager": True}
"""Values beside the default that ask for what the embedded engine does anyway."""
_ARGUMENTS_OF = {"sglang": "argosy.rollout.sglang.arguments"}
"""Engine → where its arguments are given in place of engine_kwargs."""


def find_unused(config: Config) -> Iterator[str]:
    """One line for each, as `load` reports it."""
    yield from unused_in_replay(config)
    yield from unused_by_agents(config)
    rollout = config.actor_rollout_ref.rollout
    used = _engines(config)
    if "vllm" not in used:
        for name, reason in _ONLY_VLLM.items():
            value = getattr(rollout, name)
            if value != getattr(RolloutConfig, name) and value is not _DONE_ANYWAY.get(name):
                why = reason if used == {"hf"} else f"no rollout server runs vllm, but {', '.join(sorted(used))}"
                yield f"{_ROLLOUT}.{name}={show(value)} has no effect: {why}."
    for engine, arguments in rollout.engine_kwargs.items():
        if not arguments or (engine == "vllm" and "vllm" in used):
            continue
        place = _ARGUMENTS_OF.get(engine)
        why = f"give them by {place}" if place else f"no rollout server runs {engine}"
        yield f"{_ROLLOUT}.engine_kwargs.{engine}={show(arguments)} has no effect: {why}."


def _engines(config: Config) -> set[str]:
    """Of all pools."""
    try:
        return {config.for_pool(name).actor_rollout_ref.rollout.name for name in config.pools}
    except ConfigError:
        return {config.actor_rollout_ref.rollout.name}  # what is wrong with the pools is told by their check
