r"""Whether two formulas have the same value: evaluated to 60 digits at fixed points, in bounded time (case A11).

Two formulas of the usual functions that agree to 50 digits at seven points are equal; that differ where all letters are
positive are not. Unlike a simplification by a computer algebra system this takes a fraction of a millisecond, for wrong
answers too, and has no input on which it hangs: numbers too large to be an answer are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from argosy.reward.verifiers.formula import Formula, Tree, read
from argosy.reward.verifiers.tokens import UnreadableError

_DIGITS = 60
_EXACT_PLACES = 50
_DOUBTFUL_PLACES = 25
_LARGEST_TERM = 145
"""Binary magnitude of a term (10^43): with a larger one in a sum, 60 digits don't tell what is left of the smaller."""
_DECIMAL_PLACES = 10
"""Places to which a formula with a decimal point must agree with the exact value."""
_FEWEST_POINTS = 3
_BASE = r"\log"
"""In a point: the base of a logarithm without one; None is e."""
_MOST_EXPONENT = 1_000_000
_MOST_FACTORIAL = 1000
_POSITIVE = ("0.6180339", "1.9460148", "3.3166247", "0.2718281")
_NEGATIVE = ("-0.7320508", "-2.4494897", "-1.2599210")
"""Where letters are evaluated; each letter is moved by its own amount, so that no two have the same value."""


class NoValueError(ValueError):
    """The formula has no value here: a division by zero, or a number that is too large."""


def equal_values(gold: str, stated: str) -> bool | None:
    r"""Whether two formulas in `latex.plain` form have one value; None if that can't be told.

    >>> equal_values(r"2\sqrt{3}", r"\sqrt{12}"), equal_values("(x+1)^2", "x^2+1"), equal_values(r"\{1\}", "1")
    (True, False, None)
    """
    try:
        left, right = read_cached(gold), read_cached(stated)
        return in_both_bases(left, right, lambda base: _equal_formulas(left, right, base))
    except (UnreadableError, NoValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None


def in_both_bases(gold: Formula, stated: Formula, compare: Callable[[str], bool | None]) -> bool | None:
    r"""The comparison, told the base of `\log`; where one of them has a `\log` without base, it must hold for both."""
    if not (gold.unbased or stated.unbased):
        return compare("e")
    natural, decimal = compare("e"), compare("10")
    return natural if natural == decimal else None


@functools.lru_cache(maxsize=512)
def read_cached(text: str) -> Formula:
    """`formula.read`. Raises UnreadableError."""
    return read(text)


def _equal_formulas(gold: Formula, stated: Formula, base: str) -> bool | None:
    import mpmath

    places = _DECIMAL_PLACES if gold.decimal or stated.decimal else _EXACT_PLACES
    letters, imaginary = tuple(sorted(gold.letters | stated.letters)), gold.imaginary or stated.imaginary
    with mpmath.workdps(_DIGITS):
        compared = 0
        for positive, points in ((True, _points(letters, _POSITIVE, base)), (False, _points(letters, _NEGATIVE, base))):
            for point in points:
                try:
                    left, right = evaluate(gold.tree, point), evaluate(stated.tree, point)
                except (NoValueError, ZeroDivisionError):
                    continue  # a pole of one of them, or a huge value: the other points decide
                if letters and not (imaginary or mpmath.im(left) == mpmath.im(right) == 0):
                    continue  # letters are real: outside of a logarithm's or a root's domain nothing is said
                compared += 1
                sizes = [int(mpmath.mag(side)) if side else 0 for side in (left, right)]
                if max(sizes) > _LARGEST_TERM and abs(sizes[0] - sizes[1]) < 3:
                    raise NoValueError("too large for 60 digits to tell")
                if not _close(left, right, places):
                    return False if positive else None
        return True if compared >= (_FEWEST_POINTS if letters else 1) else None


def constant_ratio(gold: Formula, stated: Formula, *, base: str, positive: bool) -> bool:
    """Whether one formula is the other times a constant, other than 0; with `positive` one above 0.

    Raises NoValueError or ZeroDivisionError if too few points tell.
    """
    import mpmath

    places = _DECIMAL_PLACES if gold.decimal or stated.decimal else _EXACT_PLACES
    ratios = []
    with mpmath.workdps(_DIGITS):
        letters = tuple(sorted(gold.letters))
        for point in _points(letters, _POSITIVE, base) + _points(letters, _NEGATIVE, base):
            try:
                left, right = evaluate(gold.tree, point), evaluate(stated.tree, point)
                ratios.append(right / left)
            except (NoValueError, ZeroDivisionError):
                continue
            if not _close(ratios[-1], ratios[0], places):
                return False
        if len(ratios) < _FEWEST_POINTS or not ratios[0]:
            raise NoValueError("too few points tell")
        return not positive or bool(mpmath.re(ratios[0]) > 0)


@functools.lru_cache(maxsize=256)
def _points(letters: tuple[str, ...], values: tuple[str, ...], base: str) -> tuple[Mapping[str, Any], ...]:
    """Within `workdps(_DIGITS)`, at the first call too."""
    from mpmath import mpf

    logarithm = {_BASE: mpf(10) if base == "10" else None}
    if not letters:
        return (logarithm,) if values is _POSITIVE else ()
    shifts = {letter: 1 + mpf(index * 7 % 11) / 13 for index, letter in enumerate(letters)}
    return tuple({letter: mpf(value) * shift for letter, shift in shifts.items()} | logarithm for value in values)


@functools.lru_cache(maxsize=1024)
def _literal(digits: str) -> Any:
    """Within `workdps(_DIGITS)`."""
    from mpmath import mpf

    return mpf(int(digits)) if digits.isdigit() else mpf(digits)


def _close(left: Any, right: Any, places: int) -> bool:
    from mpmath import mpf

    size, difference = max(abs(left), abs(right)), abs(left - right)
    if places == _DECIMAL_PLACES:
        return bool(difference <= mpf(10) ** -places * max(size, 1) / 2 and difference <= size * mpf(10) ** -6)
    if difference > mpf(10) ** -places * size and difference < mpf(10) ** -_DOUBTFUL_PLACES:
        raise NoValueError("a difference so small may be rounding, or not")
    return bool(difference <= mpf(10) ** -places * size)


def evaluate(tree: Tree, point: Mapping[str, Any]) -> Any:
    """The tree's value at a point, an mpmath number. Raises NoValueError, ZeroDivisionError."""
    import mpmath

    kind, *rest = tree
    if kind == "number":
        return _literal(str(rest[0]))
    if kind == "letter":
        return point[str(rest[0])]
    if kind == "constant":
        return {"pi": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1)}[str(rest[0])]
    arguments = [evaluate(part, point) for part in rest if isinstance(part, tuple)]
    if kind == "log":
        value = _logarithm(*arguments)
        return value if point[_BASE] is None else value / mpmath.log(point[_BASE])
    value = _operations()[str(kind)](*arguments)
    if not mpmath.isfinite(value) or abs(mpmath.mag(value) if value else 0) > 4 * _MOST_EXPONENT:
        raise NoValueError(f"{kind} gives no number of a size that can be an answer")
    return value


@functools.cache
def _operations() -> Mapping[str, Callable[..., Any]]:
    import mpmath

    named = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
    functions = ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "exp")
    return {
        "+": lambda a, b: _term(a) + _term(b),
        "-": lambda a, b: _term(a) - _term(b),
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
        "negative": lambda a: -a,
        "^": _power,
        "root": lambda degree, a: _power(a, 1 / degree),
        "abs": abs,
        "floor": lambda a: mpmath.floor(_term(a)),
        "ceiling": lambda a: mpmath.ceil(_term(a)),
        "ln": _logarithm,
        "factorial": _factorial,
        "binomial": _binomial,
        **{name: _bounded(getattr(mpmath, named.get(name, name))) for name in functions},
    }


def _term(value: Any) -> Any:
    """A value that may be added to another."""
    import mpmath

    if value and mpmath.mag(value) > _LARGEST_TERM:
        raise NoValueError("a sum of a term that is too large")
    return value


def _bounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of an argument that isn't huge: the sine of 10^{100000} takes as many digits."""

    def call(argument: Any) -> Any:
        if abs(argument) > _MOST_EXPONENT:
            raise NoValueError("the argument of a function is too large")
        return function(argument)

    return call


def _power(base: Any, exponent: Any) -> Any:
    import mpmath

    if abs(exponent) > _MOST_EXPONENT:
        raise NoValueError(f"the exponent {exponent} is too large")
    if base == 0 and mpmath.re(exponent) <= 0:
        raise NoValueError("zero to the power of zero or less")
    if mpmath.isint(exponent):
        return base ** int(mpmath.re(exponent))
    return mpmath.power(base, exponent)


def _logarithm(argument: Any) -> Any:
    import mpmath

    if argument == 0:
        raise NoValueError("the logarithm of zero")
    return mpmath.log(argument)


def _factorial(argument: Any) -> Any:
    import mpmath

    if not mpmath.isint(argument) or not 0 <= mpmath.re(argument) <= _MOST_FACTORIAL:
        raise NoValueError("the factorial of no small whole number")
    return mpmath.factorial(int(mpmath.re(argument)))


def _binomial(above: Any, below: Any) -> Any:
    import math

    import mpmath

    for number in (above, below):
        if not mpmath.isint(number) or not 0 <= mpmath.re(number) <= _MOST_FACTORIAL:
            raise NoValueError("a binomial of other than small whole numbers")
    return mpmath.mpf(math.comb(int(mpmath.re(above)), int(mpmath.re(below))))
