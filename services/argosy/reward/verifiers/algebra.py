"""math-verify, called so that it works in any thread: its own `signal.alarm` timeouts are off (case A10).

What bounds it instead: `complexity` before the call; and in a worker (`use_isolation`) a child that is killed at its
processor-time limit. Nothing of sympy is imported before `prepare` or the first comparison.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from argosy.reward.verifiers.isolation import Isolation, OverrunError

CPU_LIMIT_S = 0.4
"""Processor seconds for all that one sample asks of math-verify; a comparison takes 10 to 30 ms."""

_EXACT_PLACES = 10
"""Decimal places to which a decimal must agree with an exact value."""
_WARM_UP = (
    ("x^2+2x+1", "(x+1)^2"),
    ("x < 3", "3 > x"),
    (r"(-\infty, 2) \cup (3, 5]", r"x \in (-\infty, 2) \cup (3, 6]"),
    (r"\{1, \sqrt{2}\}", r"\{\sqrt{2}, 2\}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}"),
    (r"\sin^{-1}(\frac{2}{6})", r"\arcsin(\frac{1}{3})"),
    (r"\sin^{-1}(\frac{2}{6})", r"\arcsin(\frac{1}{4})"),
    (r"\frac{x}{2} + \sqrt{x}", r"\frac{x}{3} + \sqrt{x}"),
    ("y = 2x + 1", r"\frac{y}{2} = x + \sin(3)"),
)
_isolation: list[Isolation] = []


def prepare() -> None:
    """Import math-verify and what of sympy the usual comparisons need (a second or two)."""
    for gold, stated in _WARM_UP:
        _equal(gold, stated)


def use_isolation(cpu_limit_s: float = CPU_LIMIT_S) -> None:
    """From now on ask math-verify in children only. For processes with one thread."""
    _isolation[:] = [Isolation(cpu_limit_s)]


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """`use_isolation` for a while."""
    before = list(_isolation)
    use_isolation()
    try:
        yield
    finally:
        _isolation[:] = before


def begin_sample() -> None:
    """Another sample: its processor time is counted anew."""
    for isolation in _isolation:
        isolation.renew()


def equal(gold: str, stated: str) -> bool:
    """Whether math-verify takes the two formulas for equal. Not symmetric: the first is the gold.

    Raises OverrunError if that takes too long to tell.
    """
    return bool(bounded(lambda: _equal(gold, stated)))


def bounded(question: Callable[[], float]) -> float:
    """What the question gives, in a child where there is isolation; raises as `Isolation.measure` does."""
    return _isolation[0].measure(question) if _isolation else question()


@functools.lru_cache(maxsize=1024)
def parses(text: str) -> bool:
    """Whether math-verify can read the formula. One that takes too long is a formula: it is compared as text."""
    if not _isolation:
        return bool(_parse(text))
    try:
        return _isolation[0].ask(lambda: bool(_parse(text)))
    except OverrunError:
        return True


def _equal(gold: str, stated: str) -> bool:
    from math_verify import verify

    gold_parsed, stated_parsed = _parse(gold), _parse(stated)
    if not gold_parsed or not stated_parsed:
        return False
    verdict = verify(gold_parsed[0], stated_parsed[0], float_rounding=_EXACT_PLACES, timeout_seconds=None)
    return bool(verdict)


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
