"""What of the configuration reaches the engine."""

from __future__ import annotations

from typing import Any

from argosy.config import Config
from argosy.modeling.loading import ModelSource
from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.engines.hf.adapter import options_of
from argosy.rollout.engines.hf.loading import load_module


def test_override_config_reaches_the_engine(tmp_path: object) -> None:
    config = Config().with_values({"actor_rollout_ref.model.override_config": {"rope_theta": 5.0}})
    assert options_of(config).override_config == {"rope_theta": 5.0}
    folder = save_tiny_model(str(tmp_path))
    plain: Any = load_module(ModelSource(str(folder)))
    changed: Any = load_module(ModelSource(str(folder), override_config={"rms_norm_eps": 0.5}))
    assert plain.config.rms_norm_eps != 0.5
    assert changed.config.rms_norm_eps == 0.5


def test_engine_keys_reach_the_engine() -> None:
    config = Config().with_values({
        "argosy.rollout.slot_count": 3, "argosy.rollout.prefill_token_budget": 77, "argosy.rollout.dtype": "bfloat16",
        "argosy.rollout.stream_interval_tokens": 5, "argosy.deterministic": True,
        "data.max_prompt_length": 10, "data.max_response_length": 6,
    })  # fmt: skip
    options = options_of(config)
    assert (options.slot_count, options.prefill_token_budget, options.dtype) == (3, 77, "bfloat16")
    assert (options.stream_interval_tokens, options.deterministic, options.max_model_len) == (5, True, 16)
    assert (options.threads, options_of(Config()).threads) == (1, 0)
    assert options_of(config.with_values({"argosy.rollout.threads": 2})).threads == 2
    assert options_of(config.with_values({"actor_rollout_ref.rollout.max_model_len": 12})).max_model_len == 12
