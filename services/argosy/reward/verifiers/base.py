"""What a verifier is, and the parts that each of them reports."""

from __future__ import annotations

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


def gold_text(ground_truth: Any) -> str | None:
    """A text or a number as text; None for anything else, for booleans and for blanks."""
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, str | int | float):
        return None
    return str(ground_truth).strip() or None


def shorten(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """At most `limit` characters, with an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
