"""Shortcuts from a configuration to what consumes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from argosy.config import Config, find_problems
from argosy.controller.data import PromptSource
from argosy.controller.data.prompts import load_prompts
from argosy.controller.stages.prompt import make_requests, training_params, validation_params
from argosy.rollout.core import HfRollout
from argosy.types.ids import GroupId
from argosy.types.records import Completion, Prompt

Core = Any
"""A service's core; the tests look into them."""
Cores = Callable[[str, Config], Core]


def build(role: str, config: Config) -> Core:
    """The core, by the build function that service processes call. A rollout serves its own weights at once."""
    from argosy.reference.build import build_core as build_reference
    from argosy.rollout.build import build_core as build_rollout
    from argosy.trainer.build import build_core as build_trainer
    from argosy.trainer.build import build_critic

    if role == "rollout":
        return build_rollout(config, start_stale=False)
    return {"trainer": build_trainer, "critic": build_critic, "reference": build_reference}[role](config)


def model_of(role: str, core: Core) -> Any:
    """The transformers model inside."""
    if role in ("trainer", "critic"):
        return core._backend.model_for_export()
    return core.engine.model.module if role == "rollout" else core._model.model


def prompts(config: Config, split: str = "train") -> PromptSource:
    return load_prompts(config, split, progress=False)


def texts(config: Config, split: str = "train") -> list[str]:
    """The templated prompts."""
    return [prompt.text for prompt in prompts(config, split).in_order()]


async def sample(engine: HfRollout, config: Config, *, purpose: str = "train", n: int = 4) -> list[Completion]:
    """n completions of one prompt, with the parameters that the controller would send."""
    params = training_params(config) if purpose == "train" else validation_params(config)
    prompt = Prompt(GroupId(0, 0), tuple(range(20, 45)), "toy", "")
    requests = make_requests([prompt], n, params, purpose, config.actor_rollout_ref.rollout.max_model_len)
    found = [completion async for completion in engine.generate(requests, deadline_s=60)]
    return sorted(found, key=lambda completion: completion.sample_id)


def problems(config: Config) -> str:
    """What `argosy train` would refuse, without looking at files."""
    return "\n".join(find_problems(config, files=False))
