"""Chat messages as datasets hold them: what is accepted, said where it is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
"""{"role": …, "content": …} and whatever else the chat template reads (tool_calls, name, reasoning_content …)."""

Tools = Sequence[Mapping[str, Any]]
"""Tool definitions as JSON schemas, the way chat templates take them."""

_SHAPE = '[{"role": "user", "content": "…"}]'


def message_problem(messages: object) -> str | None:
    """Why `messages` is not a conversation that can be templated; None when it is one.

    >>> message_problem([{"role": "user", "content": "hi"}]) is None
    True
    >>> message_problem([])
    'is an empty list; expected [{"role": "user", "content": "…"}]'
    """
    if isinstance(messages, str):
        return f"is a plain string; expected a list of messages, {_SHAPE}"
    if not isinstance(messages, Sequence):
        return f"is {_kind(messages)}; expected a list of messages, {_SHAPE}"
    if not messages:
        return f"is an empty list; expected {_SHAPE}"
    for index, message in enumerate(messages):
        problem = _one_problem(message)
        if problem is not None:
            return f"message {index} {problem}"
    return None


def _one_problem(message: object) -> str | None:
    if not isinstance(message, Mapping):
        return f"is {_kind(message)}; expected an object with role and content"
    role = message.get("role")
    if not isinstance(role, str) or not role:
        return f"has no role (got {role!r}; its keys are {sorted(map(str, message))})"
    if "content" not in message:
        return f"has no content (its keys are {sorted(map(str, message))})"
    content = message["content"]
    if content is None:
        # Only an assistant that calls tools says nothing.
        return None if role == "assistant" and message.get("tool_calls") else f"({role}) has content null"
    if isinstance(content, str):
        return None
    if not isinstance(content, Sequence):
        return f"({role}) has content of type {_kind(content)}; expected text"
    return _parts_problem(role, content)


def _parts_problem(role: str, parts: Sequence[object]) -> str | None:
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            found = part.get("type") if isinstance(part, Mapping) else _kind(part)
            return f"({role}) has a content part of kind {found!r}; only text parts are supported"
    return None


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
