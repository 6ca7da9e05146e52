"""Tool definitions in the system message, for chat templates that don't write them (`argosy.agents.tool_prompt`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from argosy.controller.agents.parsers.base import Schema

_FORMS = {
    "hermes": '<tool_call>{"name": NAME, "arguments": {ARGUMENT: VALUE}}</tool_call>',
    "qwen": '<tool_call>{"name": NAME, "arguments": {ARGUMENT: VALUE}}</tool_call>',
    "qwen3_coder": "<tool_call><function=NAME><parameter=ARGUMENT>VALUE</parameter></function></tool_call>",
    "llama3_json": '{"name": NAME, "parameters": {ARGUMENT: VALUE}}',
    "pythonic": "[NAME(ARGUMENT=VALUE)]",
    "json": '{"name": NAME, "arguments": {ARGUMENT: VALUE}}',
}


def instructions(tools: Sequence[Schema], form: str) -> str:
    """What the model is told about tools; `form` is a name of a parser."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    return "\n".join(["Tools:", *lines, f"Call one by writing {_FORMS[form]} and wait for its result."])


def with_instructions(messages: Sequence[dict[str, Any]], text: str) -> tuple[dict[str, Any], ...]:
    """The conversation with `text` in its system message, which is made if there is none."""
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{text}".strip()}
        return (first, *messages[1:])
    return ({"role": "system", "content": text}, *messages)
