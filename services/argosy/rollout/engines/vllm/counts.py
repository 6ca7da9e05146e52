"""How full vLLM's cache is, from the statistics that it makes at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Usage:
    """The latest of vLLM's statistics."""

    cache_usage: float = 0.0
    """Share of the cache's blocks that running samples hold."""
    cache_tokens: int = 0
    """Tokens that the cache holds when full."""


def logger_for(usage: Usage) -> Any:
    """A factory of vLLM's statistics loggers that keeps `usage` up to date. Called where vllm can be imported."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Logger(StatLoggerBase):  # type: ignore[misc]  # vllm has no types here
        """Notes the scheduler's numbers."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._cache = vllm_config.cache_config

        def record(self, scheduler_stats: Any, iteration_stats: Any, *others: Any, **more: Any) -> None:
            """After every step."""
            if scheduler_stats is not None:
                usage.cache_usage = scheduler_stats.kv_cache_usage

        def log_engine_initialized(self) -> None:
            """Once, when the cache's size is known."""
            usage.cache_tokens = (self._cache.num_gpu_blocks or 0) * self._cache.block_size

    return Logger
