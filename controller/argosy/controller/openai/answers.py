"""What goes back to the client, in OpenAI's shapes: whole answers, and the events of a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.text.chat import Message

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: what the policy sampled in this call."""

    index: int
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str
    """"stop", "length" or "tool_calls"."""
    content: str
    """Without tool calls and the stop text."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """As OpenAI has them: arguments are text."""

    def message(self) -> dict[str, Any]:
        """The assistant's message."""
        said = {"role": "assistant", "content": self.content or None if self.tool_calls else self.content}
        return said | ({"tool_calls": [dict(call) for call in self.tool_calls]} if self.tool_calls else {})

    def kept_message(self) -> Message:
        """The message as a session compares it with what the client gives back (`messages.read_messages`)."""
        from argosy.controller.openai.messages import read_messages

        (message,) = read_messages([self.message()])
        return message


@dataclass(frozen=True, slots=True)
class Reply:
    """One call's answers, and what is said about all of them."""

    call_id: str
    model: str
    session_id: str = ""
    prompt_ids: tuple[int, ...] = ()
    """Every token before the answer: of a session, its earlier ones too."""
    answers: tuple[Answer, ...] = ()
    cached_tokens: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self) -> dict[str, Any]:
        """Counts of tokens."""
        sampled = sum(len(answer.token_ids) for answer in self.answers)
        return {
            "prompt_tokens": len(self.prompt_ids),
            "completion_tokens": sampled,
            "total_tokens": len(self.prompt_ids) + sampled,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def body(self, decode: Decode, *, logprobs: bool, token_ids: bool) -> dict[str, Any]:
        """The response of a call that isn't streamed."""
        choices = [
            {
                "index": answer.index,
                "message": answer.message(),
                "logprobs": log_probs_of(answer, decode) if logprobs else None,
                "finish_reason": answer.finish_reason,
            }
            | ({"token_ids": list(answer.token_ids)} if token_ids else {})
            for answer in self.answers
        ]
        return (
            self._head("chat.completion")
            | {"choices": choices, "usage": self.usage()}
            | ({"prompt_token_ids": list(self.prompt_ids)} if token_ids else {})
        )

    def event(self, index: int, delta: Mapping[str, Any], **fields: Any) -> bytes:
        """One event of a stream: a piece of one choice."""
        choice = {"index": index, "delta": dict(delta), "logprobs": None, "finish_reason": None} | fields
        return sse(self._head("chat.completion.chunk") | {"choices": [choice]})

    def usage_event(self) -> bytes:
        """The last event where stream_options.include_usage asks for it."""
        return sse(self._head("chat.completion.chunk") | {"choices": [], "usage": self.usage()})

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"id": self.call_id, "object": kind, "created": self.created, "model": self.model}
        return head | ({"session_id": self.session_id} if self.session_id else {})


def log_probs_of(answer: Answer, decode: Decode) -> dict[str, Any]:
    """Each sampled token with the log-prob that it was sampled at (after temperature and filters), the end token
    included. A token that is only a part of a character has no `bytes`."""
    content = []
    for token_id, log_prob in zip(answer.token_ids, answer.log_probs, strict=True):
        text = decode([token_id])
        whole = "\ufffd" not in text
        content.append({
            "token": text,
            "logprob": log_prob,
            "bytes": list(text.encode()) if whole else None,
            "top_logprobs": [],
        })  # fmt: skip
    return {"content": content, "refusal": None}


def sse(value: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
