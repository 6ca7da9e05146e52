"""Tool definitions in the system message, for chat templates that don't write them (`argosy.agents.tool_prompt`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from argosy.controller.agents.parsers.base import Schema

_JSON = '{{"name": "{name}", "arguments": {{{json}}}}}'
_FORMS = {
    "hermes": f"<tool_call>{_JSON}</tool_call>",
    "qwen": f"<tool_call>{_JSON}</tool_call>",
    "qwen3_coder": "<tool_call><function={name}>{xml}</function></tool_call>",
    "llama3_json": '{{"name": "{name}", "parameters": {{{json}}}}}',
    "pythonic": "[{name}({python})]",
    "json": _JSON,
}


def instructions(tools: Sequence[Schema], form: str) -> str:
    """What the model is told about tools, with a call of the first one; `form` is a name of a parser."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    first = tools[0]["function"]
    parameters = first.get("parameters") or {}
    names = list(parameters.get("required") or parameters.get("properties") or ())
    example = _FORMS[form].format(
        name=first["name"],
        json=", ".join(f'"{name}": …' for name in names),
        xml="".join(f"<parameter={name}>…</parameter>" for name in names),
        python=", ".join(f"{name}=…" for name in names),
    )
    return "\n".join(["Tools:", *lines, "", f"Call one by writing for example {example} and wait for its result."])


def with_instructions(messages: Sequence[dict[str, Any]], text: str) -> tuple[dict[str, Any], ...]:
    """The conversation with `text` in its system message, which is made if there is none."""
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{text}".strip()}
        return (first, *messages[1:])
    return ({"role": "system", "content": text}, *messages)
