r"""Reading one number, exactly: every verifier's numbers are fractions, so that 0.5714 is not 4/7 (case A16).

Rules:
- A group of exactly three digits after a comma is a thousands group: `3,480` and `12{,}600` (case A1). With more than
  five groups it is a list. `3, 480` with a space, and anything in brackets, is a list.
- Currency signs before and units after the number don't count: `$3,480`, `58 apples`, `30\text{ cm}`, `90^\circ`.
- `hundred`, `thousand`, `million`, `billion`, `trillion` and `dozen` multiply: "5 million" is 5000000, not 5. Words
  that do something else to a number ("5 squared", "5 halves") make it none.
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
_POWER_OF_TEN = r"(?:[eE](?P<e>[-+]?\d{1,3})\b|\s*(?:\\times|\\cdot|\*)\s*10\^\{?(?P<p>[-+]?\d{1,3})\}?)"
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_SCALE = rf"(?i:(?:{'|'.join(_SCALES)})s?)\b"
_TURNING = (
    r"(?i:squared|cubed|factorial|halves|thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|hundredths"
    r"|thousandths|millionths|billionths)\b"
)
"""Words behind a number that make another one of it."""
_QUALIFIED = re.compile(rf"{TEXT_OPEN}[^{TEXT_CLOSE}]*?(?:{_SCALE}|{_TURNING}|\b(?i:or|not|maybe|perhaps|possibly)\b)")
"""A text box that changes what stands beside it, other than a unit does."""
_SCALE_IN_BOX = re.compile(rf"{TEXT_OPEN}\s*({_SCALE})")
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*[$€£¥]?\s*(?P<sign2>[-+]?)"
    rf"(?:(?P<whole>\d{{1,9}})\s*{_FRACTION.replace('<f', '<m')}"
    rf"|{_FRACTION}"
    rf"|(?P<mw>\d{{1,9}})\s+(?P<pn>\d{{1,9}})/(?P<pd>\d{{1,9}})(?![\d/])"
    rf"|(?P<a>{_DECIMAL})(?:\s?/\s?(?P<b>{_DECIMAL})(?!\s?/)|{_POWER_OF_TEN})?)"
    rf"(?:\s*(?P<scale>{_SCALE}(?:\s+{_SCALE})?))?"
    r"(?:\s*(?P<percent>%|percent\b|per\s+cent\b))?"
)
_WORD_UNIT = re.compile(r"\s*[A-Za-z][A-Za-z.'/ -]*(?:\^\{?-?[123]\}?|[²³])?\s*\.?")
_SIGN_UNIT = re.compile(r"\s*[°€£¥$][CF]?\s*\.?")
_TEXT_UNIT = re.compile(rf"\s*{TEXT_OPEN}[^{TEXT_OPEN}{TEXT_CLOSE}\d]*{TEXT_CLOSE}(?:\^\{{?-?[123]\}}?|[²³])?\s*\.?")
_SHORT_UNITS = frozenset(
    re.findall(r"\w+", "mm cm dm km kg mg ml cl ft in yd mi lb oz hr min sec ms mph kph am pm m g s h l")
)
_NOT_UNITS = frozenset(
    re.findall(r"\w+", "pi theta alpha beta phi sqrt sin cos tan log exp mod or and to not plus minus x y z")
)
_LAST = re.compile(
    rf"[-+−]?(?:\\[dtc]?frac\{{{_DECIMAL}\}}\{{{_DECIMAL}\}}|(?:{_DECIMAL})(?:/\d+|[eE][-+]?\d{{1,3}}\b)?)\s?\\?%?"
    rf"(?: ?(?:{_SCALE}|{_TURNING}))*"
)
_GOES_ON = re.compile(
    r"[A-Za-z]\b|\s*(?:[-+*/^=<>_:]\s*(?:[\d($\\{]|[A-Za-z]\b)|\\|,\s*(?:(?:or|and|maybe|perhaps|possibly)\b)?\s*[-$\d\\])"
    r"|\s+[-+]?[$€£¥]?\d"  # "5 6"
    rf"|\s*{_TURNING}|\s+(?:is|was|are)\s+(?:not|wrong|incorrect)\b|\s+(?:is|was|are|ca|do|does)n't\b"
    r"|\s*(?:\(\s*)?(?:or|and|to|plus|minus|times|over|choose|maybe|perhaps|possibly)\b[^\n.]*\d"
    r"|(?:\s+(?!because|since|as|for|when|if|of)[A-Za-z]+){1,3}\s*(?:[,(]\s*)?(?:or|maybe|perhaps|possibly)\b[^\n.]{0,40}\d"
)
"""What shows that a number at the start of a line is a part of something larger, or one of several candidates."""
_DENIED = re.compile(
    r"(?i)(?:\b(?:not|never|neither|nor|except|cannot)|n't|\bother\s+than)"
    r"(?:\s+(?:be|equals?|to|the|number|value|answer|exactly|an?|really|simply|even))*\s*[$€£¥*\\({\[]*\s*\Z"
)
"""What stands before a number that is said not to be the answer."""
_TURNED = re.compile(rf"\s*{_TURNING}")
_BEFORE = 40
"""Characters before the last number in which a denial is looked for."""
_MOST_SIDES = 20
_COMMAND = re.compile(r"\\[A-Za-z]+")
_UNIT_SIGN = re.compile(r"[A-Za-z$€£¥°]")
_NEAR = Fraction(1, 50)
"""Two sides of an equation that differ by a larger share are no rounding of each other."""
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
    bare = _SCALE_IN_BOX.sub(rf" \1 {TEXT_OPEN}", plain(unwrap(text)).replace("\\$", "$")).strip()
    match = _NUMBER.match(bare)
    if match is None or not _is_unit(bare[match.end() :]):
        return None
    return _value(match)


def right_hand_side(text: str) -> Number | None:
    """The number right of the last `=`, if what stands left is a name, words or plain arithmetic, and no other number.

    >>> right_hand_side("5 + 53 = 58").value, right_hand_side("5x-2y+9=0"), right_hand_side("31 = 30")
    (Fraction(58, 1), None, None)
    """
    left, sign, right = unwrap(text).rpartition("=")
    number = read_number(right) if sign and not _ALGEBRA.search(left) else None
    if number is None or any(_contradicts(side, number) for side in left.split("=")[-_MOST_SIDES:]):
        return None
    return number


def read_stated_number(text: str) -> Number | None:
    """The number that a line of prose states; None if it states none, or several that are candidates (case A6).

    A number at the start counts ("58 apples, because …") unless an operator, another candidate ("5, 6, or 7", "5 (or
    6)", "5 6"), a denial or a letter follows. Otherwise what stands right of the last `=`; otherwise the only number of
    the line, unless it is denied ("not 5").

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
    matches = list(_NUMBER.finditer(bare))
    if any(_is_denied(bare, match.start()) or _TURNED.match(bare, match.end()) for match in matches):
        return None
    found = {value for value in map(_value, matches) if value is not None}
    return found.pop() if len(found) == 1 else None


def is_qualified(text: str) -> bool:
    r"""Whether a text box in it is more than a unit: `2\sqrt{3}\text{ million}`, `\text{not }x`.

    >>> is_qualified(r"2\sqrt{3}\text{ cm}"), is_qualified(r"2\sqrt{3}\text{ or }5")
    (False, True)
    """
    return _QUALIFIED.search(plain(text)) is not None


def last_number(text: str) -> str:
    """The last number of the text as it stands there; empty if there is none, or it is denied. Linear in the text."""
    match = None
    for match in _LAST.finditer(text):  # noqa: B007 -- the last match is what we want
        pass
    if match is None:
        return ""
    found = match.group().strip()
    if _is_denied(text, match.start()):
        return ""
    # A hyphen right behind a word or a number joins or subtracts: "10-4" ends in 4, "is -4" in -4.
    joined = match.start() > 0 and (text[match.start() - 1].isalnum() or text[match.start() - 1] in ")}")
    return found[1:] if joined and found[0] in "-+−" else found


def _is_denied(text: str, start: int) -> bool:
    """Whether the number at `start` is said not to be the answer."""
    return _DENIED.search(text, max(0, start - _BEFORE), start) is not None


def _contradicts(side: str, number: Number) -> bool:
    """Whether one side of an equation is a bare number, and another one: `31 = 30`, but not `1 hour = 60 minutes`."""
    other = None if _UNIT_SIGN.search(_COMMAND.sub("", side)) else read_number(side)
    if other is None or other.equals(number):
        return False
    return abs(other.value - number.value) > _NEAR * max(abs(other.value), abs(number.value))


def _is_unit(tail: str) -> bool:
    """Whether what follows a number can only be its unit, so that `2x` and `3\\pi` are no numbers."""
    if not tail.strip(" ."):
        return True
    if _SIGN_UNIT.fullmatch(tail):
        return True
    in_box = _TEXT_UNIT.fullmatch(tail) is not None
    if not in_box and not _WORD_UNIT.fullmatch(tail):
        return False
    words = re.findall(r"[A-Za-z']+", tail)
    first = words[0] if words else ""
    if _TURNED.match(first) or "or" in words or first.lower() in _NOT_UNITS:
        return False
    return in_box or first.lower() in _SHORT_UNITS or (tail[0].isspace() and len(first) >= 3)


def _value(match: re.Match[str]) -> Number | None:
    groups = match.groupdict()
    if len(match.group()) > MOST_DIGITS:
        return None
    try:
        value = _magnitude(groups)
    except ZeroDivisionError:
        return None
    for word in (groups["scale"] or "").lower().split():
        value *= _SCALES[word.removesuffix("s")]
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
