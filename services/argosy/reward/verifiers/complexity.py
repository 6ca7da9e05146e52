r"""Which formulas are too costly to hand to a computer algebra system (case A11).

A power tower or an iterated factorial can take for ever and all memory, inside one call that nothing can interrupt. The
checks are crude on purpose, linear in the text, and cost little when they are wrong: a refused formula can still equal
the gold as a text.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 600
MOST_DEPTH = 40
MOST_EXPONENT = 20_000
"""Bound on a literal exponent, and on the product of the exponents of brackets."""
MOST_ALGEBRAIC_CHARACTERS = 200
MOST_ALGEBRAIC_EXPONENT = 20
_LONG_LITERAL = re.compile(r"\d{300,}")
_POWER = re.compile(r"(?P<base>[)}\]!]?)\s*(?:\^|\*\*)\s*(?:\{|(?P<token>-?\d+|\\?[A-Za-z]+|[^\s{]))")
_BIG_BINOMIAL = re.compile(r"binom\s*\{[^{}]*\d{5,}|binom\s*\{[^{}]*\}\s*\{[^{}]*\d{5,}")
_FACTORIAL = re.compile(r"(?P<digits>\d*)\s*(?P<closing>[)}\]]?)\s*(?:\\!)*!(?P<again>\s*!)?")


def is_too_costly(text: str) -> bool:
    r"""Whether to leave the formula alone.

    >>> [is_too_costly(formula) for formula in ("10^{100}", "e^{x^2}", r"7^{7^{7}}", "(30!)!", "(x+1)^{3}")]
    [False, False, True, True, False]
    """
    return (
        len(text) > MOST_CHARACTERS
        or depth(text) > MOST_DEPTH
        or _LONG_LITERAL.search(text) is not None
        or _BIG_BINOMIAL.search(text) is not None
        or _powers_explode(text)
        or _factorials_explode(text)
    )


def is_too_large_for_algebra(text: str) -> bool:
    r"""Whether not to ask a computer algebra system, which can simplify for hours where evaluating takes no time.

    >>> is_too_large_for_algebra(r"\{x : x > 2\}"), is_too_large_for_algebra(r"\{(x+y)^{77}\}")
    (False, True)
    """
    exponents = (match.group("token") or _group(text, match.end() - 1) for match in _POWER.finditer(text))
    large = any(int(digits) > MOST_ALGEBRAIC_EXPONENT for power in exponents for digits in re.findall(r"\d+", power))
    return len(text) > MOST_ALGEBRAIC_CHARACTERS or large


def depth(text: str) -> int:
    """How deep the brackets of a text nest."""
    now = deepest = 0
    for character in text:
        if character in "([{":
            now += 1
            deepest = max(deepest, now)
        elif character in ")]}":
            now -= 1
    return deepest


def _powers_explode(text: str) -> bool:
    product = 1
    for match in _POWER.finditer(text):
        exponent = match.group("token") or _group(text, match.end() - 1)
        digits = "".join(re.findall(r"\d+", exponent))
        numeric = re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", exponent)) is None
        if numeric and re.search(r"\^|\*\*|!", exponent):
            return True  # a tower of numbers
        if digits and int(digits[:9]) > MOST_EXPONENT:
            return True
        if match.group("base") and digits:
            product *= max(1, int(digits[:9]))
            if product > MOST_EXPONENT:
                return True
    return False


def _group(text: str, start: int) -> str:
    """The content of the brace at `start`, or the rest of the text if it doesn't close."""
    level = 0
    for index in range(start, len(text)):
        level += {"{": 1, "}": -1}.get(text[index], 0)
        if level == 0:
            return text[start + 1 : index]
    return text[start + 1 :]


def _factorials_explode(text: str) -> bool:
    """Factorials of long literals, of factorials, of powers."""
    matches = list(_FACTORIAL.finditer(text))
    for match in matches:
        if match.group("again") or len(match.group("digits")) > 4:
            return True
        if match.group("closing") and (len(matches) > 1 or "^" in text[: match.start()] or re.search(r"\d{4,}", text)):
            return True
    return False
