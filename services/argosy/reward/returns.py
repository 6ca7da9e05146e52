"""What a user's function returned, as outcomes. Anything but what was agreed is refused with the function's name: never
turned into a 0, never spread over other samples (cases G1, G2)."""

from __future__ import annotations

import inspect
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

from argosy.types.records import Abstained, Failed, Outcome, Scored

_SHOWN_CHARACTERS = 2000
_ONE = 'it must return one number (or a dict with "score") for one sample'


def outcome_of(value: Any, label: str, token_count: int | None = None) -> Outcome:
    """What a return value means; anything but a finite number, a dict with one or None is refused.

    `token_count`: response ids of the sample, if the function may return "token_scores"; else that key is a part.

    >>> outcome_of({"score": 1, "acc": True}, "f")
    Scored(score=1.0, parts={'acc': True}, token_scores=())
    >>> outcome_of([1.0], "f").message
    'f returned a list of 1; it must return one number (or a dict with "score") for one sample'
    """
    if value is None:
        return Abstained(f"{label} returned None")
    if not isinstance(value, Mapping):
        score = _number(value)
        return _scored(score, {}, label) if score is not None else _refused(value, label, _ONE)
    if "score" not in value:
        keys = ", ".join(repr(key) for key in list(value)[:10]) or "none"
        return Failed("bad_return", f'{label} returned a dict without "score" (its keys: {keys})')
    if value["score"] is None:
        return Abstained(f'{label} returned "score": None')
    score = _number(value["score"])
    if score is None:
        return _refused(value["score"], f'{label}, as "score",', _ONE)
    others = {key: item for key, item in value.items() if key != "score"}
    token_scores: tuple[float, ...] = ()
    if token_count is not None and others.get("token_scores") is not None:
        found = _token_scores(others.pop("token_scores"), token_count)
        if isinstance(found, str):
            return Failed("bad_return", f'{label} returned "token_scores" {found}')
        token_scores = found
    return _scored(score, {str(key): _part(item) for key, item in others.items()}, label, token_scores)


def outcomes_of(value: Any, label: str, count: int, token_counts: list[int] | None = None) -> list[Outcome]:
    """What a batch function returned for `count` samples: a list with one entry each, or all are refused.

    >>> [outcome.score for outcome in outcomes_of([1, {"score": 0}], "f", 2)]
    [1.0, 0.0]
    >>> outcomes_of([1.0], "f", 2)[1].message
    'f returned 1 entries for 2 samples; a batch function must return a list with one entry for each sample'
    """
    wanted = "a batch function must return a list with one entry for each sample"
    shape = getattr(value, "shape", None)
    if not isinstance(value, list | tuple) and not (shape is not None and len(shape) == 1):
        return [_refused(value, label, wanted)] * count
    if len(value) != count:
        return [Failed("bad_return", f"{label} returned {len(value)} entries for {count} samples; {wanted}")] * count
    counts: list[int] | list[None] = token_counts if token_counts is not None else [None] * count
    return [outcome_of(entry, label, tokens) for entry, tokens in zip(value, counts, strict=True)]


def _scored(
    score: float, parts: dict[str, float | str | bool], label: str, token_scores: tuple[float, ...] = ()
) -> Outcome:
    if not math.isfinite(score):
        return Failed("bad_return", f"{label} returned {score}; a score must be finite")
    return Scored(score, parts, token_scores)


def _token_scores(value: Any, count: int) -> tuple[float, ...] | str:
    """The numbers, or what is wrong with them."""
    entries = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(entries, list | tuple):
        return f"as a {type(value).__name__}; they must be a list"
    found = [_number(entry) for entry in entries]
    if len(found) != count:
        return f"of {len(found)} entries for {count} response ids"
    numbers_found = tuple(number for number in found if number is not None and math.isfinite(number))
    return numbers_found if len(numbers_found) == count else "with an entry that is no finite number"


def _refused(value: Any, label: str, wanted: str) -> Failed:
    if inspect.iscoroutine(value):
        value.close()  # so that Python doesn't warn about it as well
        return Failed("bad_return", f"{label} returned a coroutine that was never awaited; declare it `async def`")
    what = type(value).__name__
    if isinstance(value, str | bytes):
        what = f"the {what} {value[:50]!r}"
    elif hasattr(value, "shape"):
        what = f"a {what} of shape {tuple(value.shape)}"
    elif hasattr(value, "__len__"):
        what = f"a {what} of {len(value)}"
    else:
        what = f"a {what}"
    return Failed("bad_return", f"{label} returned {what}; {wanted}")


def _number(value: Any) -> float | None:
    """A Python or numpy number, a bool or a 0-d array or tensor as float; None for anything else."""
    if isinstance(value, str | bytes | list | tuple):
        return None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real) and type(value).__name__ != "Decimal":
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _part(value: Any) -> float | str | bool:
    """Scalars as they are; anything else, and what is not finite, as text: extras never break a batch (case G2)."""
    if isinstance(value, bool | str):
        return value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value
    number = _number(value)
    if number is not None and math.isfinite(number):
        return number
    try:
        return json.dumps(value, default=repr)[:_SHOWN_CHARACTERS]
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:_SHOWN_CHARACTERS]
