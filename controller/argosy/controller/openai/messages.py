"""Chat messages: checked, compared with what a session already holds, and made into what chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from argosy.controller.openai.errors import bad_request
from argosy.controller.plain import refusal
from argosy.text.chat import Message

ROLES = ("system", "developer", "user", "assistant", "tool")
_EMPTY: tuple[Any, ...] = (None, [], {}, "")
"""Values that say nothing: clients send some of them along with every answer that they give back."""


def read_messages(value: Any) -> tuple[Message, ...]:
    """A request's `messages`, as templates read them: text parts joined, arguments of tool calls as objects.

    The role "developer" becomes "system", which chat templates of open models know. Raises ApiError.
    """
    if not isinstance(value, list) or not value:
        raise bad_request(
            'messages: wants a list of at least one message, [{"role": "user", "content": "…"}]', "messages"
        )
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(value))


def _message(where: str, value: Any) -> Message:
    if not isinstance(value, Mapping):
        raise bad_request(f"{where}: wants an object with role and content, got {type(value).__name__}", where)
    role = value.get("role")
    if role not in ROLES:
        raise bad_request(f"{where}.role: got {role!r}, wants one of {', '.join(ROLES)}", f"{where}.role")
    calls = _tool_calls(f"{where}.tool_calls", value.get("tool_calls")) if value.get("tool_calls") else []
    content = _text(f"{where}.content", value.get("content"), may_lack=role == "assistant")
    rest = {
        str(name): item
        for name, item in value.items()
        if name not in ("role", "content", "tool_calls") and item not in _EMPTY
    }
    message = {"role": "system" if role == "developer" else role, "content": content} | rest
    return message | {"tool_calls": calls} if calls else message


def _text(where: str, value: Any, *, may_lack: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None and may_lack:
        return ""
    if isinstance(value, list):
        for part in value:
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise bad_request(f"{where}: got a part of kind {kind!r}; only text parts are supported", where)
        return "".join(part["text"] for part in value)
    raise bad_request(f"{where}: wants text, got {'null' if value is None else type(value).__name__}", where)


def _tool_calls(where: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise bad_request(f"{where}: wants a list, got {type(value).__name__}", where)
    calls = []
    for call in value:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad_request(f"{where}: each call wants an object function with name and arguments", where)
        named = {"id": str(call["id"])} if call.get("id") else {}
        arguments = _arguments(function.get("arguments", {}))
        calls.append(named | {"type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return calls


def _arguments(value: Any) -> Any:
    """The object that the text holds: templates write it as JSON themselves. Text that is no JSON stays as it is, and
    so does one of an object that nobody could carry on (NaN, half characters, nesting without end)."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, Mapping) and not refusal(found) else value


def same_messages(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Whether two conversations say the same, message by message (`message_key`)."""
    return len(one) == len(other) and all(
        message_key(left) == message_key(right) for left, right in zip(one, other, strict=True)
    )


def message_key(message: Message) -> str:
    """What makes a message that message: all of it but space around its text and the ids of its tool calls, which
    clients change on the way."""
    plain = dict(message)
    plain["content"] = str(plain.get("content") or "").strip()
    if "tool_calls" in plain:
        plain["tool_calls"] = [dict(call["function"]) for call in plain["tool_calls"]]
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, default=str)
