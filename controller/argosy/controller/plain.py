"""Free-form values as everybody can carry them: checkpoints, records, dumps, and the wire to reward services.

That is JSON in UTF-8 with finite numbers: no lone surrogates, no NaN, no sets, no key that isn't a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 24
"""Levels of nesting: protobuf reads about a hundred messages inside each other, and a level of a Struct takes three."""

_HALVES = re.compile("[\ud800-\udfff]")


def refusal(value: Any) -> str:
    r"""Why a value can't be carried, in words; empty: it can. Tuples count as lists.

    >>> refusal({"a": [1, float("inf")]}), refusal("\ud800"), refusal({"a": (1, None)})
    ('inf is no JSON number', 'a text has half a surrogate pair', '')
    """
    open_values: list[tuple[Any, int]] = [(value, 0)]
    while open_values:
        one, depth = open_values.pop()
        if one is None or isinstance(one, bool):
            continue
        if isinstance(one, str):
            if not _is_utf8(one):
                return "a text has half a surrogate pair"
        elif isinstance(one, int | float):
            if not _is_finite(one):
                return f"{one} is no JSON number" if isinstance(one, float) else "an integer is too large"
        elif not isinstance(one, Mapping | list | tuple):
            return f"a {type(one).__name__} is no JSON value"
        elif depth >= MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} deep"
        elif isinstance(one, Mapping):
            if not all(isinstance(key, str) and _is_utf8(key) for key in one):
                return "an object has a key that is no text"
            open_values += [(inner, depth + 1) for inner in one.values()]
        else:
            open_values += [(inner, depth + 1) for inner in one]
    return ""


def cleaned(value: Any, depth: int = 0) -> Any:
    r"""A copy that can be carried: halves of surrogate pairs become U+FFFD, numbers that are not finite or too large
    become null, and what JSON hasn't (or nests deeper than MAX_DEPTH) becomes its text.

    >>> cleaned({1: "\ud800", "b": float("nan"), "c": ({2},)})
    {'1': '�', 'b': None, 'c': ['{2}']}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if _is_utf8(value) else _HALVES.sub("\ufffd", value)
    if isinstance(value, int | float):
        return value if _is_finite(value) else None
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return {cleaned(str(key)): cleaned(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [cleaned(inner, depth + 1) for inner in value]
    return cleaned(_text(value))


def _text(value: Any) -> str:
    try:
        return str(value)
    except (ValueError, RecursionError):  # digits without end, or nesting without end
        return f"<{type(value).__name__}>"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond a double
        return False
