"""Formats with tags around each call: Hermes' JSON (Qwen 2.5 and 3 too), and Qwen3-Coder's XML.

<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
<tool_call><function=add><parameter=a>1</parameter></function></tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from argosy.controller.agents.parsers.base import MAX_CALL_CHARACTERS, Parsed, Schema, ToolCall, collect, read_call

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\A\s*<function=([^<>\s]+)\s*>(.*?)(?:</function>)?\s*\Z", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)\s*>\n?(.*?)(?:\n?</parameter>|(?=\s*<parameter=)|\s*\Z)", re.DOTALL)


def split_tags(text: str, opening: str = OPEN, closing: str = CLOSE) -> tuple[str, list[str | None]]:
    """The text outside the tags, and what each pair holds; None for one that is never closed."""
    outside: list[str] = []
    inside: list[str | None] = []
    place = 0
    while (start := text.find(opening, place)) >= 0:
        outside.append(text[place:start])
        end = text.find(closing, start + len(opening))
        if end < 0:
            inside.append(None)
            place = len(text)
            break
        inside.append(text[start + len(opening) : end])
        place = end + len(closing)
    outside.append(text[place:])
    return "".join(outside), inside


class Hermes:
    """JSON between tags."""

    def parse(self, text: str, tools: Sequence[Schema]) -> Parsed:
        """See ToolParser."""
        return _tagged(text, lambda body: read_call(body.strip()))


class QwenCoder:
    """XML between tags; a JSON call between them is read too, since models mix the two."""

    def parse(self, text: str, tools: Sequence[Schema]) -> Parsed:
        """See ToolParser. Values are read as the tool's schema says: a string stays text, all else is JSON."""
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        return _tagged(text, lambda body: _read_xml(body, schemas))


def _tagged(text: str, read: Callable[[str], Any]) -> Parsed:
    content, bodies = split_tags(text)
    found = [f"{OPEN} is not closed by {CLOSE}" if body is None else read(body) for body in bodies]
    return collect(content, found)


def _read_xml(body: str, schemas: Mapping[str, Any]) -> ToolCall | str | Any:
    if len(body) > MAX_CALL_CHARACTERS:
        return f"the call has {len(body)} characters, at most {MAX_CALL_CHARACTERS} are read"
    if body.lstrip().startswith("{"):
        return read_call(body.strip())
    match = _FUNCTION.match(body)
    if match is None:
        return "the call has no <function=NAME> … </function>"
    name, inner = match.groups()
    properties = schemas.get(name, {}).get("properties") or {}
    arguments = {
        key: _value(text, properties.get(key) or {}) for key, text in _PARAMETER.findall(inner)
    }  # of a parameter given twice the last one counts, as in JSON
    return ToolCall(name, arguments)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A parameter's text as what the schema wants; text where it isn't that."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
