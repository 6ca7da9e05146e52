"""`argosy/format`: whether the response has the asked shape; what it says is not judged.

The default shape is `<think>…</think><answer>…</answer>`, each tag once, both with content and nothing around them.
`extra_info["format_pattern"]` gives another one: a regular expression that must match the whole response, `.` being any
character. The ground truth is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from argosy.types.records import Failed, Outcome, Scored

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the response has the shape, else 0."""
    pattern = extra_info.get("format_pattern")
    if pattern is None:
        return _scored(has_think_answer_shape(solution))
    try:
        return _scored(re.fullmatch(str(pattern), solution.strip(), re.DOTALL) is not None)
    except re.error as error:
        return Failed("bad_ground_truth", f"extra_info.format_pattern {pattern!r} is no regular expression: {error}")


def has_think_answer_shape(text: str) -> bool:
    """Whether the text is `<think>…</think><answer>…</answer>`: in order, once each, not empty.

    >>> has_think_answer_shape("<think>1+1</think>\\n<answer>2</answer>"), has_think_answer_shape("<answer>2</answer>")
    (True, False)
    """
    if any(text.count(tag) != 1 for tag in _TAGS):
        return False
    before, _, rest = text.partition(_TAGS[0])
    thought, _, rest = rest.partition(_TAGS[1])
    between, _, rest = rest.partition(_TAGS[2])
    answer, closing, after = rest.partition(_TAGS[3])
    return bool(closing and thought.strip() and answer.strip()) and not (before + between + after).strip()


def _scored(right: bool) -> Scored:
    return Scored(float(right), {"acc": float(right), "format": float(right)})
