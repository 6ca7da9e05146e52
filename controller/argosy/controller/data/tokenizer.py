"""The tokenizer of a run's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.text import TextTokenizer


def tokenizer_of(config: Config) -> TextTokenizer:
    """Of `actor_rollout_ref.model`. Raises InvalidInputError."""
    from argosy.text import load_tokenizer

    model = config.actor_rollout_ref.model
    return load_tokenizer(
        model.tokenizer_path or model.path,
        chat_template=model.custom_chat_template,
        trust_remote_code=model.trust_remote_code or config.data.trust_remote_code,
    )
