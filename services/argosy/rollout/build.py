"""Makes the rollout core that a run's configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.rollout.core import RolloutCore, RolloutOptions


def build_core(config: Config, *, start_stale: bool = True) -> RolloutCore:
    """The core over the engine `actor_rollout_ref.rollout.name`. May load the model: takes seconds to minutes.

    Args:
        config: The resolved configuration.
        start_stale: Answer nothing until the trainer's weights have come, as every member of a run must (case D11).

    Raises:
        ConfigError: there is no such engine, or this environment lacks what it needs.
    """
    from argosy.rollout.engines import load_engine

    make = load_engine(config.actor_rollout_ref.rollout.name)

    from argosy.rollout.core import RolloutCore
    from argosy.text.decoding import decoder_of

    model = config.actor_rollout_ref.model
    decode = decoder_of(
        model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code or config.data.trust_remote_code
    )
    return RolloutCore(make(config, decode, start_stale=start_stale), core_options_of(config), decode)


def core_options_of(config: Config) -> RolloutOptions:
    """The core's settings in a run's configuration."""
    from argosy.rollout.core import RolloutOptions

    service = config.argosy.rollout
    return RolloutOptions(
        slot_count=service.slot_count,
        max_waiting=service.max_waiting,
        max_model_len=max_model_len_of(config),
        stream_interval_tokens=service.stream_interval_tokens,
        stall_timeout_s=service.stall_timeout_s,
    )


def max_model_len_of(config: Config) -> int:
    """Most tokens of prompt and response together."""
    needed = config.data.max_prompt_length + config.data.max_response_length
    return config.actor_rollout_ref.rollout.max_model_len or needed
