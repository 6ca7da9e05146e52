"""Formats with tags around each call: Hermes' JSON (Qwen 2.5 and 3 too), and Qwen3-Coder's XML.

<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
<tool_call><function=add><parameter=a>1</parameter></function></tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from argosy.controller.agents.parsers.base import (
    MAX_CALL_CHARACTERS,
    Parsed,
    Schema,
    ToolCall,
    checked,
    collect,
    read_call,
)
from argosy.controller.plain import refusal

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Both match in a time that grows with the text as such: no two parts that may share characters. The rest is str.find,
# since this runs on the event loop, and policies that collapse write blanks without end.
_FUNCTION = re.compile(r"<function=([^<>\s]+)\s*>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)\s*>\n?")
_END_FUNCTION, _NEXT, _END = "</function>", "<parameter=", "</parameter>"


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
    body = body.strip()
    match = _FUNCTION.match(body)
    if match is None:
        return "the call has no <function=NAME> … </function>"
    name, inner = match[1], body[match.end() :].removesuffix(_END_FUNCTION)
    properties = schemas.get(name, {}).get("properties") or {}
    arguments = {
        key: _value(text, properties.get(key) or {}) for key, text in _parameters(inner)
    }  # of a parameter given twice the last one counts, as in JSON
    return checked(name, arguments)


def _parameters(inner: str) -> Iterator[tuple[str, str]]:
    """Names and texts. A text ends at its closing tag, or, where that is missing, at the next parameter or the end."""
    place, end = 0, 0
    while (match := _PARAMETER.search(inner, place)) is not None:
        start = match.end()
        if 0 <= end < start:  # one that lies ahead still holds, and none stays none
            end = inner.find(_END, start)
        following = inner.find(_NEXT, start)
        if end >= 0 and not 0 <= following < end:
            yield match[1], inner[start:end].removesuffix("\n")
            place = end + len(_END)
        else:
            place = following if following >= 0 else len(inner)
            yield match[1], inner[start:place].rstrip()


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A parameter's text as what the schema wants; text where it isn't that."""
    if schema.get("type") == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if refusal(value) else value
