"""The number in a judge's answer, read whole, or none at all.

1. Only what follows the last `</think>` is read; a `<think>` that never closes has no verdict yet.
2. A reply that is a JSON object with `score` (rating, grade, mark) says it there and nowhere else.
3. Otherwise explicit marks count: `<score>7</score>`, `[[7]]`, `\\boxed{7}`, `"score": 7`, and `Score: 7` (also
   rating, grade, mark; with `is` or `=`; Markdown around it doesn't count). Of those that begin a line (after `Final`,
   `Overall` and the like) the **last** wins; without one, the last anywhere. So a judge that quotes "Score: 10" from
   the answer, in the middle of a sentence, isn't taken at its word.
4. Without a mark, the last line counts if it is a number and nothing else.
5. A number is read whole, with sign, decimals, exponent, and scale: `-0.5`, `7.5e-1`, `1,000`, `7/10`, `7 out of 10`,
   `85%`. Where the mark that counts holds no single number (`7 or 8`, `7-8`, `seven`, `7th`), there is no verdict.
6. A reply that was cut (by its length limit) ends anywhere: in the middle of a number, or after a score that it only
   quoted. It has a verdict only if that was all that was left to say: its last line is a mark that begins a line and
   was ended by a line break, or it is a whole JSON object; nothing but white space follows.

What isn't read is not a 0: the caller asks again, and then calls the sample failed.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = rf"[+\-−]?\s?(?:{_INTEGER}(?:\.\d*)?|\.\d+)(?:[eE][+\-−]?\d+)?"
_WORD = r"(?:score|rating|grade|mark)"
_MARKS = re.compile(
    rf"""
    (?P<start>^[\s*_`#>\-]*(?:(?:final|overall|total|my|the|so|thus|therefore)[\s,]+)*)?
    (?:
      <score>(?P<tag>[^<]*)</score>
    | \[\[(?P<brackets>[^\[\]]*)\]\]
    | \\boxed\{{(?P<box>[^{{}}]*)\}}
    | ["']{_WORD}["']\s*:\s*(?=(?P<json>[^\n]*))
    | \b{_WORD}\b[*_`]*\s*(?:\([^()\n]{{0,60}}\)[*_`]*\s*)?(?::|=|\bis\b)(?=(?P<line>[^\n]*))
    )
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_HELD = ("tag", "brackets", "box", "json", "line")
_VALUE = re.compile(
    rf"(?P<number>{_NUMBER})(?:\s*(?P<percent>%)|\s*(?:/|\bout\s+of\b)\s*(?P<scale>{_NUMBER}))?", re.IGNORECASE
)
_GOES_ON = re.compile(r"[\w%]|[.,:]\d|\s*(?:[-–—−~/+*^×=±&]|to\b|or\b|and\b|out\b|,)?\s*[+\-−.]?\d", re.IGNORECASE)
"""What may not follow: it would make another number, or several, of it."""
_QUOTES = " \t\r*_`'\"("
_OPENING = re.compile(r"\[\[|\\boxed\{|<score>", re.IGNORECASE)
"""One mark inside another: `Score: [[7]]`."""
_AFTER_THOUGHT = re.compile(r"</think>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scale:
    """The range that a judge is asked for.

    >>> scale = Scale(0, 10)
    >>> read_verdict("Good work.\\nScore: 7.5", scale), read_verdict("Score: 8 or 9", scale)
    (7.5, None)
    """

    lowest: float = 0.0
    highest: float = 10.0

    def share(self, value: float) -> float:
        """Where the value lies between lowest (0) and highest (1)."""
        return (value - self.lowest) / (self.highest - self.lowest)


def read_verdict(text: str, scale: Scale, *, cut: bool = False) -> float | None:
    """The verdict within the scale, or None: unreadable, or outside it. `cut`: the reply was ended before its end."""
    rest = _AFTER_THOUGHT.split(text)[-1]
    if re.search(r"<think>", rest, re.IGNORECASE):
        return None
    told = _told_by_json(rest)
    marks = list(_MARKS.finditer(rest))
    if cut and told is None and not _ends_with_mark(rest):
        return None
    if told is not None:
        found = _read(told, scale, alone=True)
    elif marks:
        mark = next((mark for mark in reversed(marks) if mark["start"] is not None), marks[-1])
        name = next(name for name in _HELD if mark[name] is not None)
        found = _read(mark[name], scale, alone=name not in ("json", "line"))
    else:
        lines = rest.strip().splitlines()
        found = _read(lines[-1], scale, alone=True) if lines else None
    if found is None or not math.isfinite(found) or not scale.lowest <= found <= scale.highest:
        return None
    return found


def _ends_with_mark(text: str) -> bool:
    """Whether the last line is whole, and a mark begins it."""
    *lines, rest = text.rstrip(" \t").split("\n")
    whole = [line for line in lines if line.strip()]
    found = _MARKS.search(whole[-1]) if whole and not rest.strip() else None
    return found is not None and found["start"] is not None


def _told_by_json(text: str) -> str | None:
    """What a reply that is a JSON object (in a code fence or not) says under the name of a score."""
    body = re.sub(r"^\s*```(?:json)?\s*|\s*```\s*$", "", text, flags=re.IGNORECASE).strip()
    if not body.startswith("{"):
        return None
    try:
        found = json.loads(body, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None
    told = [value for key, value in found.items() if re.fullmatch(_WORD, key, re.IGNORECASE)]
    return str(told[-1]) if told else None


def _read(text: str, scale: Scale, *, alone: bool) -> float | None:
    """The number that the text begins with. `alone`: nothing else may stand there."""
    held = _OPENING.sub("", text.strip().lstrip(_QUOTES), count=1).lstrip(_QUOTES)
    found = _VALUE.match(held)
    if found is None:
        return None
    after = held[found.end() :]
    if _GOES_ON.match(after) or (alone and after.strip(_QUOTES + ").!")):
        return None
    value = _number(found["number"])
    if found["percent"]:
        return scale.highest * value / 100 if scale.lowest == 0 else None
    if found["scale"] is None:
        return value
    of = _number(found["scale"])
    if of == scale.highest:
        return value
    # 4/5 where 0 to 10 was asked for is 8; of a range that doesn't begin at 0 nobody knows what was meant.
    return value / of * scale.highest if scale.lowest == 0 and of > 0 else None


def _number(text: str) -> float:
    return float(re.sub(r"[\s,]", "", text).replace("−", "-"))
