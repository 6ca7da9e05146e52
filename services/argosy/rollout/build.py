"""Makes the rollout core that a run's configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.rollout.core import HfRollout, HfRolloutOptions


def build_core(config: Config, *, start_stale: bool = True) -> HfRollout:
    """The core of `actor_rollout_ref.rollout.name`. Loads the model: takes seconds to minutes.

    Args:
        config: The resolved configuration.
        start_stale: Answer nothing until the trainer's weights have come, as every member of a run must (case D11).
    """
    from argosy.modeling.determinism import use_repeatable_kernels
    from argosy.rollout.core import HfRollout
    from argosy.text.tokenizer import load_tokenizer

    name = config.actor_rollout_ref.rollout.name
    if name != "hf":
        raise ConfigError(f"actor_rollout_ref.rollout.name={name}: this build has the engine 'hf'")
    if config.argosy.deterministic:
        use_repeatable_kernels()
    model = config.actor_rollout_ref.model
    tokenizer = load_tokenizer(
        model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code or config.data.trust_remote_code
    )
    return HfRollout(options_of(config, start_stale=start_stale), tokenizer.decode)


def options_of(config: Config, *, start_stale: bool = True) -> HfRolloutOptions:
    """The engine's settings in a run's configuration."""
    from argosy.rollout.core import HfRolloutOptions

    service = config.argosy.rollout
    needed = config.data.max_prompt_length + config.data.max_response_length
    return HfRolloutOptions(
        model_path=config.actor_rollout_ref.model.path,
        dtype=service.dtype,
        device=service.device,
        threads=config.argosy.threads_of("rollout"),
        slot_count=service.slot_count,
        max_model_len=config.actor_rollout_ref.rollout.max_model_len or needed,
        prefill_token_budget=service.prefill_token_budget,
        stream_interval_tokens=service.stream_interval_tokens,
        deterministic=config.argosy.deterministic,
        start_stale=start_stale,
        override_config=config.actor_rollout_ref.model.override_config,
        trust_remote_code=config.actor_rollout_ref.model.trust_remote_code,
    )
