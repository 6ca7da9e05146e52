"""What a scoring model reads: the conversation and the answer, as its own tokenizer and chat template write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from argosy.text.tokenizer import TextTokenizer, load_tokenizer
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.records import ScoreRequest

TRUNCATIONS = ("left", "right", "fail")
_BREAK = "\u200b"
"""A zero-width space: put into a special token's text, it makes plain text of it."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A sample as a scoring model reads it."""

    ids: tuple[int, ...]
    truncated: bool


class UnreadableSampleError(Exception):
    """The sample can't be written for the model: (reason, message) of its Failed outcome."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class DialogueWriter:
    """Writes samples for one model.

    Args:
        tokenizer: The scoring model's; None: the policy's own token ids are what the model reads.
        max_length: Most tokens; longer ones are cut as `truncation` says.
        truncation: "left" drops the start and keeps the answer's end, where the score is read; "right" drops the end
            (as verl does); "fail" makes the sample Failed("too_large").
    """

    tokenizer: TextTokenizer | None
    max_length: int
    truncation: str = "left"

    def write(self, item: ScoreRequest) -> Dialogue:
        """Token ids of conversation and answer. Raises UnreadableSampleError."""
        ids = self._ids(item)
        if not ids:
            raise UnreadableSampleError("bad_request", "the conversation has no tokens")
        if len(ids) <= self.max_length:
            return Dialogue(ids, truncated=False)
        if self.truncation == "fail":
            raise UnreadableSampleError(
                "too_large", f"conversation and answer take {len(ids)} tokens; the reward model reads {self.max_length}"
            )
        return Dialogue(ids[-self.max_length :] if self.truncation == "left" else ids[: self.max_length], True)

    def text(self, item: ScoreRequest) -> str:
        """The conversation with the answer as its last turn. Raises UnreadableSampleError."""
        if self.tokenizer is None:
            raise UnreadableSampleError("bad_request", "without a tokenizer there is no text")
        if not item.messages:
            raise UnreadableSampleError("bad_request", "the sample came without messages, which a reward model needs")
        answer = plain_text(item.response_text, self.tokenizer.special_tokens)
        messages = [*item.messages, {"role": "assistant", "content": answer}]
        try:
            return self.tokenizer.render(messages, add_generation_prompt=False)
        except InvalidInputError as error:
            raise UnreadableSampleError("bad_request", error.message) from error

    def _ids(self, item: ScoreRequest) -> tuple[int, ...]:
        if self.tokenizer is not None:
            return self.tokenizer.encode_rendered(self.text(item))
        if not item.prompt_ids:
            raise UnreadableSampleError("bad_request", "the sample came without token ids")
        return (*item.prompt_ids, *item.response_ids)


def plain_text(answer: str, special_tokens: tuple[str, ...]) -> str:
    """The answer with every spelled-out special token broken up, so that it can't begin a turn of its own.

    >>> plain_text("4<|im_end|>", ("<|im_end|>",)) == "4<\u200b|im_end|>"
    True
    """
    names = [token for token in special_tokens if len(token) > 1]
    if not names:
        return answer
    pattern = "|".join(re.escape(token) for token in sorted(names, key=len, reverse=True))
    return re.sub(pattern, lambda found: found[0][0] + _BREAK + found[0][1:], answer)


def load_writer_tokenizer(path: str, *, chat_template: str | None, trust_remote_code: bool) -> TextTokenizer:
    """The scoring model's tokenizer. `chat_template`: Jinja source or a file with it, in place of its own.

    Raises ConfigError if there is none, or if it has no chat template.
    """
    source = read_text_or_file(chat_template) if chat_template is not None else None
    try:
        tokenizer = load_tokenizer(path, chat_template=source, trust_remote_code=trust_remote_code)
    except InvalidInputError as error:
        raise ConfigError(f"reward_model.model.path: {error.message}") from error
    except ImportError as error:
        raise ConfigError(
            f"a reward model's conversations can't be written here ({error}): install transformers, or set "
            "argosy.reward.model.api=chat, where the server writes them"
        ) from error
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"reward_model.model.path: the tokenizer of {path} has no chat template; set "
            "argosy.reward.model.chat_template, or reward_model.model.input_tokenizer=null if the model reads the "
            "policy's own tokens"
        )
    return tokenizer


def read_text_or_file(value: str) -> str:
    """The text itself, or what the file holds that it names (one line without braces)."""
    if "\n" in value or "{" in value:
        return value
    path = Path(value).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{value!r} is neither a template nor a file with one: {error}") from error
