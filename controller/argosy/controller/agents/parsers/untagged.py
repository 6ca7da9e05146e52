"""Formats where a whole turn is the call: plain JSON, Llama 3's JSON, and calls as Python writes them.

{"name": "add", "arguments": {"a": 1}}             json: an object or a list of them, also in a fenced block
<|python_tag|>{"name": "add", "parameters": {}}    llama3_json: the tag may be missing, calls are parted by ;
[add(a=1), mul(a=2, b=[3])]                        pythonic: literals only
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from argosy.controller.agents.parsers.base import (
    MAX_CALL_CHARACTERS,
    Parsed,
    Schema,
    ToolCall,
    call_of,
    checked,
    collect,
)

_TAG = "<|python_tag|>"
_SPECIAL = re.compile(r"<\|[a-zA-Z0-9_]+\|>")
_FENCE = "```"
_CALLS_PYTHON = re.compile(r"\A\[\s*[A-Za-z_][\w.]*\s*\(")
_DECODER = json.JSONDecoder()


class PlainJson:
    """A turn that is a call, or that ends in one; other text is an answer."""

    def parse(self, text: str, tools: Sequence[Schema]) -> Parsed:
        """See ToolParser."""
        text = _SPECIAL.sub("", text).strip()
        before, body = _fenced(text) or ("", text)
        if not body.startswith(("{", "[")):
            return Parsed(text)
        return _read_values(body, before, text)


class LlamaJson:
    """Llama 3.1's and 3.2's JSON calls."""

    def parse(self, text: str, tools: Sequence[Schema]) -> Parsed:
        """See ToolParser."""
        before, tag, after = text.partition(_TAG)
        body = _SPECIAL.sub("", after if tag else text).strip()
        if not tag and not body.startswith("{"):
            return Parsed(body)
        return _read_values(body, before if tag else "", body)


class Pythonic:
    """Llama 4's and others' calls: a list of Python calls with literal keyword arguments. Nothing is evaluated."""

    def parse(self, text: str, tools: Sequence[Schema]) -> Parsed:
        """See ToolParser."""
        body = _SPECIAL.sub("", text).strip()
        if not _CALLS_PYTHON.match(body):
            return Parsed(body)
        if len(body) > MAX_CALL_CHARACTERS:
            return collect("", [f"the calls have {len(body)} characters, at most {MAX_CALL_CHARACTERS} are read"])
        try:
            tree = ast.parse(body, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return collect("", ["the list of calls is no valid Python"])
        if not isinstance(tree, ast.List):
            return collect("", ["the calls are not in one list [f(a=1), …]"])
        return collect("", [_python_call(node) for node in tree.elts])


def _fenced(text: str) -> tuple[str, str] | None:
    """What stands before the first plain or JSON block between fences, and what is in it. In linear time: each fence
    is looked at once, and blocks in other languages are left out whole."""
    start = text.find(_FENCE)
    while start >= 0:
        inside = start + len(_FENCE)
        inside += len("json") if text.startswith("json", inside) else 0
        end = text.find(_FENCE, inside)
        if end < 0:
            return None
        block = text[inside:end]
        body = block.lstrip()
        if "\n" in block[: len(block) - len(body)]:
            return text[:start], body.rstrip()
        start = text.find(_FENCE, end + len(_FENCE))
    return None


def _read_values(body: str, before: str, whole: str) -> Parsed:
    """JSON values one after another, parted by spaces or semicolons; each is a call or a list of calls."""
    if len(body) > MAX_CALL_CHARACTERS:
        return collect(before, [f"the call has {len(body)} characters, at most {MAX_CALL_CHARACTERS} are read"])
    found: list[Any] = []
    place = 0
    while place < len(body):
        try:
            value, place = _DECODER.raw_decode(body, place)
        except (ValueError, RecursionError):
            # Text after a whole call is talk; a first value that can't be read was meant as a call.
            found += [] if found else ["the call is no valid JSON"]
            break
        found += [call_of(one) for one in value] if isinstance(value, list) else [call_of(value)]
        while place < len(body) and body[place] in " \t\r\n;":
            place += 1
    if not any(isinstance(one, ToolCall) for one in found) and '"name"' not in body:
        return Parsed(whole)  # an answer that happens to be JSON
    return collect(before, found)


def _python_call(node: ast.expr) -> ToolCall | str:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return "the list holds something that is no call"
    name = _name(node.func)
    if not name:
        return "the list holds a call of something that is no name"
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return f"the arguments of {name} must be given by name"
    try:
        return checked(name, {str(word.arg): ast.literal_eval(word.value) for word in node.keywords})
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return f"an argument of {name} is no literal value"


def _name(node: ast.expr) -> str:
    """A name with dots, however many; empty where it is something else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
