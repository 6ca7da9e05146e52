"""Which code of a response is run: one rule, in training and in validation (case G9).

1. Only what follows the last `</think>` is read; a `<think>` that never closes has no code yet.
2. Code stands between fences: a line of three or more ` or ~ with an optional tag, up to a line with at least as many
   of the same. A last fence that never closes goes to the end of the text. Indented fences are dedented.
3. Blocks tagged with the wanted language (any case: `python`, `Python3`, `py`, …) go before blocks without a tag;
   blocks tagged otherwise (`text`, `bash` for Python) are never run.
4. For call-based tests the last block that defines the function; else, and for programs, the last block.

No block: no code, score 0. The text itself is never run.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from argosy.reward.verifiers.extraction import after_thinking

TAGS: dict[str, tuple[str, ...]] = {
    "python": ("python", "python3", "py", "py3", "python2", "pypy", "pypy3"),
    "cpp": ("cpp", "c++", "cxx", "cc", "c++17", "c++20"),
    "javascript": ("javascript", "js", "node", "nodejs"),
    "bash": ("bash", "sh", "shell"),
}
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its tag in lower case, without attributes, and its lines."""

    tag: str
    code: str


def find_code(response: str, language: str, function: str | None = None) -> str | None:
    """The code to run; None if there is none."""
    blocks = fenced(after_thinking(response))
    tagged = [block.code for block in blocks if block.tag in TAGS[language]]
    candidates = tagged or [block.code for block in blocks if not block.tag]
    candidates = [code for code in candidates if code.strip()]
    if function is not None:
        name = re.escape(function)
        defines = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{name}\b|^{name}[ \t]*=", re.MULTILINE)
        candidates = [code for code in candidates if defines.search(code)] or candidates
    return candidates[-1] if candidates else None


def fenced(text: str) -> list[Block]:
    """All fenced blocks, in order."""
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        fence = _FENCE.fullmatch(line)
        if opening is None:
            if fence is not None:
                opening, lines = fence, []
        elif fence is not None and not fence[3] and fence[2].startswith(opening[2]):
            blocks.append(_block(opening, lines))
            opening = None
        else:
            lines.append(line)
    return [*blocks, _block(opening, lines)] if opening is not None else blocks


def _block(opening: re.Match[str], lines: list[str]) -> Block:
    indent = opening[1]
    code = "\n".join(line.removeprefix(indent) for line in lines)
    tag = re.split(r"[{,:]", opening[3].lower().lstrip("{."), maxsplit=1)[0].rstrip("}")
    return Block(tag, textwrap.dedent(code) if indent else code)
