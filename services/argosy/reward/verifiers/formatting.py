"""`argosy/format`: whether the response has the asked shape; what it says is not judged.

The default shape is `<think>…</think><answer>…</answer>`, each tag once, both with content and nothing around them.
Another spelling of a tag (`<THINK>`, `< answer >`, `<answer/>`) counts as one too many. "Content" is at least one
letter, digit or sign of mathematics: spaces, dots and invisible characters are none.

`extra_info["format_pattern"]` gives another shape: a regular expression that must match the whole response, `.` being
any character. The ground truth is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers.extraction import find_box
from argosy.types.records import Failed, Outcome, Scored

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_ANY_TAG = re.compile(r"<\s{0,8}/?\s{0,8}(?:think|answer)\b[^<>]{0,80}>", re.IGNORECASE)
_SIGNS_OF_CONTENT = frozenset("+-=<>√∞∅")


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
    if tuple(_ANY_TAG.findall(text)) != _TAGS:
        return False
    before, _, rest = text.partition(_TAGS[0])
    thought, _, rest = rest.partition(_TAGS[1])
    between, _, rest = rest.partition(_TAGS[2])
    answer, closing, after = rest.partition(_TAGS[3])
    return bool(closing) and has_content(thought) and has_content(answer) and not (before + between + after).strip()


def has_think_box_shape(text: str) -> bool:
    r"""geometry3k's shape: one `<think>…</think>` at the start, then text with just one box, both with content.

    >>> has_think_box_shape(r"<think>1+1</think> So \boxed{2}."), has_think_box_shape(r"\boxed{2}")
    (True, False)
    """
    if tuple(_ANY_TAG.findall(text)) != _TAGS[:2]:
        return False
    before, _, rest = text.partition(_TAGS[0])
    thought, _, answer = rest.partition(_TAGS[1])
    return not before.strip() and has_content(thought) and answer.count("\\boxed") == 1 and bool(find_box(answer).text)


def has_content(text: str) -> bool:
    """Whether there is a letter, a digit or a sign of mathematics."""
    return any(character.isalnum() or character in _SIGNS_OF_CONTENT for character in text)


def _scored(right: bool) -> Scored:
    return Scored(float(right), {"acc": float(right), "format": float(right), "rule": "format"})
