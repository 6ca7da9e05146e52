r"""Plain forms of LaTeX and Markdown, so that texts which mean the same compare equal. All linear in the text."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final

TEXT_OPEN: Final = "⟨"
TEXT_CLOSE: Final = "⟩"

_DROPPED = re.compile(r"(?<!\\)(?:\\left\b\.?|\\right\b\.?|\\[!,;:>]|\\displaystyle\b|\\(?:big|Big|bigg|Bigg)[lr]?\b)")
_THIN_SPACE = re.compile(r"(?<=\d)\\[,;: ](?!\d{3}(?!\d))(?=\d)")
"""Between two numbers; before a group of three digits it is one number."""
_SPACE = re.compile(r"(?<!\\)\\ ")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|textit|textrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"\^\s*(?:\\circ\b|\{\s*\\circ\s*\})|\\degree\b|\\circ\b")
_SHORT_FRACTION = re.compile(r"\\[dtc]?frac\s*(\{|\d)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d)")
_WRAPPERS = (
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("**", "**"),
    ("__", "__"),
    ("*", "*"),
    ("`", "`"),
)
_SAME = {"−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "{,}": ",", "~": " "}


_APART = re.compile(r"(?<=\d)\s+(?=\d)")
_MOST_CACHED = 1000


def cached(function: Callable[[str], str]) -> Callable[[str], str]:
    """The rules ask for the plain form of the same short text many times; long ones would fill the memory."""
    remembered = functools.lru_cache(maxsize=512)(function)

    @functools.wraps(function)
    def call(text: str) -> str:
        return remembered(text) if len(text) <= _MOST_CACHED else function(text)

    return call


@cached
def unwrap(text: str) -> str:
    r"""Take off the Markdown, the math delimiters and the full stop around an answer (case A15).

    >>> unwrap("**\\(58\\)**."), unwrap("$58$"), unwrap("58%")
    ('58', '58', '58%')
    """
    text = text.strip()
    while True:
        before = text
        if text.endswith((".", ",", ";")) and not text.endswith("\\,"):
            text = text[:-1].rstrip()
        for opening, closing in _WRAPPERS:
            long_enough = len(text) > len(opening) + len(closing)
            if long_enough and text.startswith(opening) and text.endswith(closing):
                inner = text[len(opening) : -len(closing)]
                if opening not in inner and closing not in inner:
                    text = inner.strip()
        # An emphasis that opened before the marker ("**Answer: 58**") leaves its closing half behind.
        kept = text.rstrip("*_`")
        if kept != text and not re.search(r"[*_`]", kept):
            text = kept.rstrip()
        if text == before:
            return text


@cached
def plain(text: str) -> str:
    r"""One spelling for each thing: `\dfrac12` → `\frac{1}{2}`, `12{,}600` → `12,600`, `\text{ cm}` → `⟨ cm⟩`.

    >>> plain(r"\tfrac47"), plain(r"30\text{ cm}"), plain(r"90^\circ")
    ('\\frac{4}{7}', '30⟨ cm⟩', '90°')
    """
    for old, new in _SAME.items():
        text = text.replace(old, new)
    text = _DROPPED.sub("", _THIN_SPACE.sub(" ", text))
    text = text.replace("\\$", "$").replace("\\%", "%")
    text = _SPACE.sub(" ", text)
    text = _TEXT.sub(rf"{TEXT_OPEN}\1{TEXT_CLOSE}", text)
    text = _DEGREE.sub("°", text)
    return _SHORT_ROOT.sub(r"\\sqrt{\1}", _long_fractions(text)).strip()


def _long_fractions(text: str) -> str:
    r"""Write `\frac12`, `\frac1{2}`, `\frac{1}2` and the d, t and c forms as `\frac{1}{2}`."""
    pieces: list[str] = []
    done = 0
    for match in _SHORT_FRACTION.finditer(text):
        pieces += [text[done : match.start()], "\\frac"]
        done = match.end() - 1  # from the first argument on
        if match.group(1) == "{":
            continue  # the second argument is looked after below
        pieces.append("{" + match.group(1) + "}")
        done = match.end()
        second = re.compile(r"\s*(\d)").match(text, done)
        if second is not None:
            pieces.append("{" + second.group(1) + "}")
            done = second.end()
    text = "".join([*pieces, text[done:]])
    return re.sub(r"(\\frac\{[^{}]*\})\s*(\d)", r"\1{\2}", text)


@cached
def squeezed(text: str) -> str:
    """For comparing formulas as text: plain, without spaces, text boxes and outer delimiters. `1 2` isn't `12`."""
    return re.sub(rf"[\s{TEXT_OPEN}{TEXT_CLOSE}]", "", _APART.sub("␣", plain(unwrap(text))))


def words(text: str) -> str:
    r"""For comparing words: no LaTeX, Markdown, outer quotes or final stop; case and runs of spaces don't count.

    >>> words(r"\text{ Blue  Whale}."), words('"Yes"')
    ('blue whale', 'yes')
    """
    bare = plain(unwrap(text)).replace(TEXT_OPEN, " ").replace(TEXT_CLOSE, " ")
    return " ".join(bare.split()).strip("\"'“”‘’ ").casefold()
