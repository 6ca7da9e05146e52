"""math-verify, called so that it works in any thread: its own `signal.alarm` timeouts are off (case A10).

What bounds it instead: `complexity` before the call, and the worker's processor-time limit, kill and memory limit
around it. Nothing of sympy is imported before `prepare` or the first comparison.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

_EXACT_PLACES = 10
"""Decimal places to which a decimal must agree with an exact value."""


def prepare() -> None:
    """Import math-verify and sympy (about a second), and pay for the first, slow parse."""
    equal("x^2+2x+1", "(x+1)^2")


def equal(gold: str, stated: str) -> bool:
    """Whether math-verify takes the two formulas for equal. Not symmetric: the first is the gold."""
    from math_verify import verify

    gold_parsed, stated_parsed = _parse(gold), _parse(stated)
    if not gold_parsed or not stated_parsed:
        return False
    verdict = verify(gold_parsed[0], stated_parsed[0], float_rounding=_EXACT_PLACES, timeout_seconds=None)
    return bool(verdict)


def parses(text: str) -> bool:
    """Whether math-verify can read the formula."""
    return bool(_parse(text))


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> tuple[Any, ...]:
    from math_verify import LatexExtractionConfig, parse

    _silence()
    bare = text.replace("⟨", r"\text{").replace("⟩", "}")
    parsed = parse(
        f"${bare}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return tuple(parsed[:1])


@functools.cache
def _silence() -> None:
    """It warns once that its timeouts are off; here that is on purpose."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
