"""Whether an output is the expected one. Runs in the worker, on plain data only.

Programs: the same tokens (split at white space) in the same order; a token is right if it is the same text, or the same
number: exactly for integers, within 1e-6 (absolute, or relative to the expected one) where the expected one is written
with a point or an exponent. Zeros in front count (`0101` is not `101`). Line breaks, trailing spaces and blank lines
don't count; upper and lower case do.

Functions: the same value; tuples are lists, True is 1, keys of mappings are compared as JSON writes them. A set is
right only where a set is expected, and JSON has none: it would be right in any order where a list is. Numbers as above:
within 1e-6 where the expected one is a float, else exactly.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from argosy.sandbox.plain import Bag

TOLERANCE = 1e-6
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_ZEROS = re.compile(r"[+-]?0\d", re.ASCII)
_TOKEN = re.compile(r"\S+")
_MOST_DIGITS = 400
"""Longer tokens are compared as texts: turning digits into a number takes quadratic time."""


def same_output(actual: str, expected: str) -> bool:
    """Standard output, token by token."""
    if actual.rstrip() == expected.rstrip():
        return True
    pairs = itertools.zip_longest(_tokens(actual), _tokens(expected))
    return all(found is not None and wanted is not None and _same_token(found, wanted) for found, wanted in pairs)


def same_value(actual: Any, expected: Any) -> bool:
    """A decoded claim and the dataset's value. Iterative, so that depth costs no stack."""
    waiting = [(actual, expected)]
    while waiting:
        found, wanted = waiting.pop()
        if isinstance(wanted, set | frozenset):
            if not isinstance(found, Bag) or len(found) != len(wanted):
                return False
            waiting += zip(sorted(found, key=_order), sorted(wanted, key=_order), strict=True)
        elif isinstance(wanted, dict):
            if not isinstance(found, dict):
                return False
            by_key = {_key(key): value for key, value in found.items()}
            expected_by_key = {_key(key): value for key, value in wanted.items()}
            if len(by_key) != len(found) or by_key.keys() != expected_by_key.keys():
                return False
            waiting += [(by_key[key], value) for key, value in expected_by_key.items()]
        elif isinstance(wanted, list | tuple):
            if not isinstance(found, list) or isinstance(found, Bag) or len(found) != len(wanted):
                return False
            waiting += zip(found, wanted, strict=True)
        elif not _same_scalar(found, wanted):
            return False
    return True


def _tokens(text: str) -> Iterator[str]:
    """One at a time: a list of them would take many times the memory of the text."""
    return (match.group() for match in _TOKEN.finditer(text))


def _same_token(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    if max(len(found), len(wanted)) > _MOST_DIGITS or not (_DECIMAL.fullmatch(found) and _DECIMAL.fullmatch(wanted)):
        return False
    if _ZEROS.match(found) or _ZEROS.match(wanted):
        return False  # zeros in front mean something: digits of a code, binary numbers
    if any(mark in wanted for mark in ".eE"):
        return _close(float(found), float(wanted))
    return not any(mark in found for mark in ".eE") and int(found) == int(wanted)


def _same_scalar(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) or wanted is None:
        return type(found) is type(wanted) and bool(found == wanted)
    if not isinstance(found, int | float):
        return False
    if isinstance(wanted, float):
        try:
            return _close(float(found), wanted)
        except OverflowError:
            return False
    return bool(found == wanted)


def _close(found: float, wanted: float) -> bool:
    if not (math.isfinite(found) and math.isfinite(wanted)):
        return found == wanted or (math.isnan(found) and math.isnan(wanted))
    return abs(found - wanted) <= TOLERANCE * max(1.0, abs(wanted))


def _order(member: Any) -> tuple[Any, ...]:
    """Sorts the members of a set the same way on both sides: by kind, then by value."""
    if isinstance(member, int | float):
        return (1, math.inf if math.isnan(member) else member)
    if isinstance(member, str):
        return (2, member)
    if isinstance(member, set | frozenset | Bag):
        return (4, sorted(map(_order, member)))
    if isinstance(member, list | tuple):
        return (3, [_order(item) for item in member])
    return (0, repr(member))


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return {True: "true", False: "false", None: "null"}[key] if key is None or isinstance(key, bool) else repr(key)
