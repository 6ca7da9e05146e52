"""Engines of the rollout service, one subpackage each, behind the Protocol in `base`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from argosy.rollout.engines.base import Engine

ENGINES: dict[str, str] = {
    "hf": "argosy.rollout.engines.hf.adapter:make",
    "vllm": "argosy.rollout.engines.vllm:make",
    "sglang": "argosy.rollout.engines.sglang:make",
    "simulated": "argosy.rollout.engines.simulated:make",
}
"""`actor_rollout_ref.rollout.name` → "module:function", imported only when it is chosen.

Each function is called as `make(config, decode, start_stale=…)`, in a thread of its own, and returns an Engine. It may
load the model, or leave that to the engine's `start`.
"""


def load_engine(name: str) -> Callable[..., Engine]:
    """The function that makes an engine. ConfigError if there is none of that name, or what it needs isn't here."""
    if name not in ENGINES:
        raise ConfigError(f"actor_rollout_ref.rollout.name={name}: this build has the engines {', '.join(ENGINES)}")
    module, _, function = ENGINES[name].partition(":")
    try:
        make: Callable[..., Engine] = getattr(import_module(module), function)
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={name} needs the Python package {missing.name!r}, which this environment "
            "lacks: start the rollout with the interpreter of one that has it (argosy.services.rollout.python)"
        ) from missing
    return make
