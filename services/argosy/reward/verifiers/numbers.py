r"""Reading one number, exactly: every verifier's numbers are fractions, so that 0.5714 is not 4/7 (case A16).

Rules:
- A group of exactly three digits after a comma is a thousands group: `3,480` and `12{,}600` (case A1). With more than
  five groups it is a list. `3, 480` with a space, and anything in brackets, is a list.
- Currency signs before and units after the number don't count: `$3,480`, `58 apples`, `30\text{ cm}`, `90^\circ`.
- A percent sign counts as a unit and as 1/100: 12.5 % is 12.5 and is 0.125, and never 1250.
- `\frac{4}{7}`, `\tfrac47`, `4/7`, `1\frac12`, `1 1/2`, `1.2\times 10^3` and `1.2e3` are numbers.
- A rounded decimal is not the exact value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from argosy.reward.verifiers.latex import TEXT_CLOSE, TEXT_OPEN, plain, unwrap

MOST_DIGITS = 400
"""A longer literal is no number here: it is compared as text only (bounds the work, case A11)."""

_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3}){1,5}(?!\d|,\d)|\d+)(?:\.\d+)?|\.\d+)"
_FRACTION = rf"\\frac\{{\s*(?P<fs>[-+]?)\s*(?P<fn>{_DECIMAL})\s*\}}\{{\s*(?P<fd>{_DECIMAL})\s*\}}"
_SCALE = r"(?:[eE](?P<e>[-+]?\d{1,3})\b|\s*(?:\\times|\\cdot|\*)\s*10\^\{?(?P<p>[-+]?\d{1,3})\}?)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*[$€£¥]?\s*(?P<sign2>[-+]?)"
    rf"(?:(?P<whole>\d{{1,9}})\s*{_FRACTION.replace('<f', '<m')}"
    rf"|{_FRACTION}"
    rf"|(?P<mw>\d{{1,9}})\s+(?P<pn>\d{{1,9}})/(?P<pd>\d{{1,9}})(?![\d/])"
    rf"|(?P<a>{_DECIMAL})(?:\s?/\s?(?P<b>{_DECIMAL})(?!\s?/)|{_SCALE})?)"
    r"(?:\s*(?P<percent>%|percent\b))?"
)
_WORD_UNIT = re.compile(r"\s*[A-Za-z][A-Za-z.'/ -]*(?:\^\{?-?[123]\}?|[²³])?\s*\.?")
_SIGN_UNIT = re.compile(r"\s*[°€£¥$][CF]?\s*\.?")
_TEXT_UNIT = re.compile(rf"\s*{TEXT_OPEN}[^{TEXT_OPEN}{TEXT_CLOSE}\d]*{TEXT_CLOSE}(?:\^\{{?-?[123]\}}?|[²³])?\s*\.?")
_SHORT_UNITS = frozenset(
    {
        "mm",
        "cm",
        "dm",
        "km",
        "kg",
        "mg",
        "ml",
        "cl",
        "ft",
        "in",
        "yd",
        "mi",
        "lb",
        "oz",
        "hr",
        "min",
        "sec",
        "ms",
        "mph",
        "kph",
        "am",
        "pm",
        "m",
        "g",
        "s",
        "h",
        "l",
    }
)
_NOT_UNITS = frozenset(
    {
        "pi",
        "theta",
        "alpha",
        "beta",
        "phi",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "log",
        "exp",
        "mod",
        "or",
        "and",
        "to",
        "x",
        "y",
        "z",
    }
)
_LAST = re.compile(
    rf"[-+−]?(?:\\[dtc]?frac\{{{_DECIMAL}\}}\{{{_DECIMAL}\}}|(?:{_DECIMAL})(?:/\d+|[eE][-+]?\d{{1,3}}\b)?)\s?\\?%?"
)
_GOES_ON = re.compile(
    r"[A-Za-z]\b|\s*(?:[-+*/^=<>_:]\s*(?:[\d($\\{]|[A-Za-z]\b)|\\|,\s*(?:or\b|and\b)?\s*[-$\d\\]|(?:or|and|to)\b[^\n.]*\d)"
)
"""What shows that a number at the start of a line is a part of something larger, or one of several candidates."""
_FORMULA_IN_LINE = re.compile(r"\|[^|]*\d[^|]*\||(?:\$|\\\()[^$]*\d\s*!|[<>≤≥≠]|\\[lg]eq?\b|\\neq?\b")
"""An absolute value; a factorial between delimiters of mathematics (elsewhere "58!" is an exclamation); a bound."""
_ALGEBRA = re.compile(
    r"\d[A-Za-z]\b|\b[A-Za-z]\s*[-+*/^]|[-+*/^]\s*[A-Za-z]\b|\\(?!times|div|cdot|frac|angle|overline)[A-Za-z]"
)
"""Variables or functions at work: the right-hand side of such an equation is not the answer (case A13)."""


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value, and whether a percent sign stood behind it."""

    value: Fraction
    percent: bool = False

    def equals(self, other: Number) -> bool:
        """Equal values; if just one has a percent sign, it may mean itself or a hundredth."""
        if self.value == other.value:
            return True
        if self.percent == other.percent:
            return False
        with_sign, without = (self, other) if self.percent else (other, self)
        return with_sign.value / 100 == without.value


def read_number(text: str) -> Number | None:
    r"""The number that the whole text is, units apart; None if it is anything else.

    >>> read_number("$3,480.00"), read_number(r"30\text{ cm}").value, read_number("(3,480)"), read_number("2x")
    (Number(value=Fraction(3480, 1), percent=False), Fraction(30, 1), None, None)
    """
    if len(text) > 4 * MOST_DIGITS:
        return None
    bare = plain(unwrap(text)).replace("\\$", "$").strip()
    match = _NUMBER.match(bare)
    if match is None or not _is_unit(bare[match.end() :]):
        return None
    return _value(match)


def right_hand_side(text: str) -> Number | None:
    """The number right of the last `=`, if what stands left is a name, words or plain arithmetic.

    >>> right_hand_side("5 + 53 = 58").value, right_hand_side("5x-2y+9=0"), right_hand_side("58")
    (Fraction(58, 1), None, None)
    """
    left, sign, right = text.rpartition("=")
    return read_number(right) if sign and not _ALGEBRA.search(left) else None


def read_stated_number(text: str) -> Number | None:
    """The number that a line of prose states; None if it states none, or several that are candidates (case A6).

    A number at the start counts ("58 apples, because …") unless an operator, another candidate ("5, 6, or 7") or a
    letter follows. Otherwise what stands right of the last `=`; otherwise the only number of the line.

    >>> read_stated_number("5 + 53 = 58.").value, read_stated_number("5, 6, or 7")
    (Fraction(58, 1), None)
    >>> read_stated_number("8, since 3+5").value
    Fraction(8, 1)
    """
    text = text[: 8 * MOST_DIGITS]
    whole = read_number(text)
    if whole is not None:
        return whole
    if _FORMULA_IN_LINE.search(text):
        return None
    bare = plain(unwrap(text)).replace(TEXT_OPEN, " ").replace(TEXT_CLOSE, " ")
    bare = re.sub(r"\*\*|\\[()\[\]]|`", "", bare).strip()
    if bare.count("$") > 1:
        bare = bare.replace("$", "")
    match = _NUMBER.match(bare)
    if match is not None and not _GOES_ON.match(bare, match.end()):
        return _value(match)
    if "=" in bare:
        return right_hand_side(bare)
    if match is not None or _ALGEBRA.search(bare):
        return None
    found = {value for value in map(_value, _NUMBER.finditer(bare)) if value is not None}
    return found.pop() if len(found) == 1 else None


def last_number(text: str) -> str:
    """The last number of the text as it stands there; empty if there is none. Linear in the text."""
    match = None
    for match in _LAST.finditer(text):  # noqa: B007 -- the last match is what we want
        pass
    if match is None:
        return ""
    found = match.group().strip()
    # A hyphen right behind a word or a number joins or subtracts: "10-4" ends in 4, "is -4" in -4.
    joined = match.start() > 0 and (text[match.start() - 1].isalnum() or text[match.start() - 1] in ")}")
    return found[1:] if joined and found[0] in "-+−" else found


def _is_unit(tail: str) -> bool:
    """Whether what follows a number can only be its unit, so that `2x` and `3\\pi` are no numbers."""
    if not tail.strip(" ."):
        return True
    if _SIGN_UNIT.fullmatch(tail) or _TEXT_UNIT.fullmatch(tail):
        return True
    if not _WORD_UNIT.fullmatch(tail):
        return False
    first = re.split(r"[^A-Za-z]", tail.strip(), maxsplit=1)[0]
    if first.lower() in _NOT_UNITS:
        return False
    return first.lower() in _SHORT_UNITS or (tail[0].isspace() and len(first) >= 3)


def _value(match: re.Match[str]) -> Number | None:
    groups = match.groupdict()
    if len(match.group()) > MOST_DIGITS:
        return None
    try:
        value = _magnitude(groups)
    except ZeroDivisionError:
        return None
    minus = [groups["sign"], groups["sign2"], groups["fs"], groups["ms"]].count("-")
    return Number(-value if minus % 2 else value, percent=groups["percent"] is not None)


def _magnitude(groups: dict[str, str | None]) -> Fraction:
    def read(name: str) -> Fraction:
        return Fraction((groups[name] or "0").replace(",", ""))

    if groups["whole"] is not None:
        return read("whole") + read("mn") / read("md")
    if groups["fn"] is not None:
        return read("fn") / read("fd")
    if groups["mw"] is not None:
        return read("mw") + read("pn") / read("pd")
    if groups["b"] is not None:
        return read("a") / read("b")
    return read("a") * Fraction(10) ** int(groups["e"] or groups["p"] or 0)
