"""Does the way of the weights fit the engine and what is trained?"""

from __future__ import annotations

from collections.abc import Iterator

from argosy.config.schema import Config
from argosy.config.validate.rules import one_of

ADAPTER_ENGINES = ("hf", "vllm")
"""Rollout engines that take an adapter alone (`Capabilities.adapter_sync`)."""
_KEY = "argosy.weight_sync.adapter_only"


def check_weight_sync(config: Config) -> Iterator[str]:
    """An adapter can go alone only where there is one and the engine takes it."""
    if config.argosy.weight_sync.adapter_only != "on":
        return
    name = config.actor_rollout_ref.rollout.name
    if not config.actor_rollout_ref.model.uses_lora:
        yield f"{_KEY}: got on with actor_rollout_ref.model.lora_rank=0, which trains all weights; set auto"
    if name not in ADAPTER_ENGINES:
        yield (
            f"{_KEY}: got on with actor_rollout_ref.rollout.name={name}, which takes only whole weights; set auto, or "
            f"actor_rollout_ref.rollout.name to {one_of(ADAPTER_ENGINES)}"
        )
