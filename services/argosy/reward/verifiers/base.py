"""What a verifier is, and the parts that each of them reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.reward.verifiers.extraction import Answer
from argosy.types.records import Failed, Outcome, Scored

SHOWN_CHARACTERS = 200
"""Longest `pred` that a result carries."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Verifier:
    """A family of scorers.

    `verify(solution, ground_truth, extra_info)` is pure: it touches neither signals nor threads nor processes, so that
    it gives the same verdict wherever it runs (case A10). Bounds on time and memory are the worker's business.
    """

    name: str
    verify: Callable[[str, Any, Mapping[str, Any]], Outcome]
    prepare: Callable[[], None] = _nothing
    """Loads what is slow to import, once in each worker, outside the deadline of any sample."""
    bounds_itself: bool = False
    """What takes time runs in another process, with limits of its own: it must not be interrupted in ours."""
    options: tuple[str, ...] = ()
    """What `extra_info.reward_kwargs` may hold for it, besides `penalties`."""


def judged(correct: bool, answer: Answer, *, rule: str, note: str = "") -> Scored:
    """Score 1 or 0 with the parts `acc`, `format`, `extracted` (1 or 0), `pred` (the text that was judged), `marker`
    (where it stood) and `rule` (what decided: "spelling", "number", "list", "value", …, "no answer").

    `format` is 1 when the answer stood in an explicit marker; `extracted` is 1 when there was any answer to judge. The
    mean of `1 - extracted` is the extraction-failure rate (case A15).
    """
    parts: dict[str, float | str | bool] = {
        "acc": float(correct),
        "format": float(answer.explicit and bool(answer.text)),
        "extracted": float(bool(answer.text)),
        "pred": shorten(answer.text),
        "marker": answer.marker,
        "rule": rule,
    }
    if note:
        parts["note"] = note
    return Scored(float(correct), parts)


def bad_ground_truth(ground_truth: Any, problem: str) -> Failed:
    """The dataset's row is at fault: reported and counted, neither rewarded nor punished (cases A8, A9)."""
    return Failed("bad_ground_truth", f"ground truth {shorten(repr(ground_truth))} {problem}; mend or drop the row")


def options(extra_info: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any] | Failed:
    """A verifier's options: `extra_info["reward_kwargs"]` over its defaults. An unknown name or a wrong type is Failed.

    >>> options({"reward_kwargs": {"method": "strict"}}, {"method": "marked", "digits": 2})
    {'method': 'strict', 'digits': 2}
    """
    given = extra_info.get("reward_kwargs") or {}
    if not isinstance(given, Mapping):
        return Failed("bad_options", f"extra_info.reward_kwargs must be a mapping, got {shorten(repr(given))}")
    for name, value in given.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            return Failed("bad_options", f"extra_info.reward_kwargs.{name} is no option here; there are: {known}")
        if not _fits(value, defaults[name]):
            wanted = type(defaults[name]).__name__
            return Failed("bad_options", f"extra_info.reward_kwargs.{name} must be a {wanted}, got {value!r}")
    return {**defaults, **given}


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, list | tuple if isinstance(default, list | tuple) else type(default))


def gold_text(ground_truth: Any) -> str | None:
    """A text or a number as text; None for anything else, for booleans and for blanks."""
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, str | int | float):
        return None
    return str(ground_truth).strip() or None


def shorten(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """At most `limit` characters, with an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
