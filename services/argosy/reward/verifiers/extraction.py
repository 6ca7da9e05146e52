r"""Where a response states its answer: one rule for all verifiers, before, during and after training.

1. Where a `</think>` closes, only the text after the last one is read. A `<think>` that never closes has no answer yet.
2. **Strong markers**: `\boxed{…}`, `<answer>…</answer>`, and `#### …` up to the end of the line. The last one in the
   text wins, whatever its kind: a later marker takes back an earlier one (case A5); a box in an answer tag is the later
   one. A box whose brace never closes is an empty answer, never a prefix of one (case A4); an answer tag may be left
   open, because engines cut the stop string `</answer>`. When the gold is a number, a `####` line that starts with a
   word other than "not" is a heading, not an answer.
3. **Answer lines**, when there is no strong marker: the last `Answer: …`, `Final answer: …`, `The answer is …` up to
   the end of the line (or the next line, if the rest is blank). When the gold is a number, a phrase followed by no
   digit and no LaTeX ("the answer is right") is prose and is passed over.
4. **No marker**: for a numeric gold the last number of the text, for any other gold the whole text.

An empty marker is an empty answer: score 0, without looking further (case A8). Every step is linear in the text's
length, and nothing depends on a window at its end (cases A2, A3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOX = re.compile(r"\\f?boxed\s*(?=\{)|\\f?boxed\s+(?=[^\s{])")
_HEADING_CONTENT = re.compile(r"[\s*_`]*(?:(?i:not)\b|[A-Za-z]\s*=|[^A-Za-z\\]*\d|[^A-Za-z\\]*\\)")
_ANSWER_PHRASE = re.compile(r"(?i)\banswer[*_ ]{0,4}(?:[:=]|\bis\b)[*_: ]{0,6}")
_ANSWER_COLON = re.compile(r"(?i)\banswer[*_ ]{0,4}:[*_]{0,4}")
_DIGIT_OR_LATEX = re.compile(r"[\d\\]")
_MOST_PHRASES = 64
_PHRASE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found.

    >>> find_answer("6*9=54\\n#### 54\\nThat is it.", numeric=True)
    Answer(text='54', marker='hash')
    """

    text: str
    """The answer as it stands in the response, stripped; empty when there is none."""
    marker: str
    """"boxed", "hash", "tag", "line" or "none"."""

    @property
    def explicit(self) -> bool:
        """Whether the response marked its answer."""
        return self.marker != "none"


def find_answer(response: str, *, numeric: bool) -> Answer:
    """The answer by the rule above; `Answer("", "none")` means that rule 4 applies, which is the verifier's to do."""
    visible = after_thinking(response)
    return _strong(visible, numeric) or _line(visible, numeric) or Answer("", "none")


def find_hash(response: str) -> Answer:
    """The last `####` line that states a number, whatever else is marked."""
    place = _hash(after_thinking(response), numeric=True)
    return place[1] if place else Answer("", "none")


def find_box(response: str) -> Answer:
    """The last box, whatever else is marked."""
    place = _box(after_thinking(response))
    return place[1] if place else Answer("", "none")


def find_tag(response: str) -> Answer:
    """The last `<answer>`, whatever else is marked."""
    place = _tag(after_thinking(response))
    return place[1] if place else Answer("", "none")


def find_answer_line(response: str) -> Answer:
    """The last `Answer: …` with a colon, whatever else is marked; of a line with a box, the box."""
    text = after_thinking(response)
    match = None
    for match in _ANSWER_COLON.finditer(text):  # noqa: B007 -- the last match is what we want
        pass
    if match is None:
        return Answer("", "none")
    content = _rest_of_line(text, match.end())
    boxed = _box(content)
    return Answer(boxed[1].text if boxed else content, "line")


def after_thinking(response: str) -> str:
    """The text after the last `</think>`, up to a `<think>` that never closes."""
    return response.rpartition("</think>")[2].partition("<think>")[0]


def _strong(text: str, numeric: bool) -> Answer | None:
    found = [place for place in (_box(text), _tag(text), _hash(text, numeric)) if place is not None]
    return max(found, key=lambda place: place[0])[1] if found else None


def _box(text: str) -> tuple[int, Answer] | None:
    match = None
    for match in _BOX.finditer(text):  # noqa: B007 -- the last match is what we want
        pass
    if match is None:
        return None
    if text[match.end()] == "{":
        content = braced(text, match.end())
    else:
        content = re.split(r"[\s$]", text[match.end() : match.end() + _PHRASE_CHARACTERS], maxsplit=1)[0]
    return match.start(), Answer((content or "").strip(), "boxed")


def braced(text: str, start: int) -> str | None:
    r"""What is between the brace at `start` and its partner; None if it never closes. `\{` and `\}` don't count."""
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        token = match.group()
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : match.start()]
    return None


def _tag(text: str) -> tuple[int, Answer] | None:
    start = text.rfind("<answer>")
    if start < 0:
        return None
    content = text[start + len("<answer>") :].partition("</answer>")[0]
    return start, Answer(content.strip(), "tag")


def _hash(text: str, numeric: bool) -> tuple[int, Answer] | None:
    end = len(text)
    for _ in range(_MOST_PHRASES):
        start = text.rfind("####", 0, end)
        if start < 0:
            return None
        content = _rest_of_line(text, start + 4)
        if not content or not numeric or _HEADING_CONTENT.match(content):
            return start, Answer(content, "hash")
        end = start
    return None


def _line(text: str, numeric: bool) -> Answer | None:
    places = [match.end() for match in _ANSWER_PHRASE.finditer(text)]
    for start in reversed(places[-_MOST_PHRASES:]):
        content = _rest_of_line(text, start)
        if not content or not numeric or _DIGIT_OR_LATEX.search(content):
            return Answer(content, "line")
    return None


def _rest_of_line(text: str, start: int) -> str:
    """Up to the end of the line, or the next line that isn't blank; at most `_PHRASE_CHARACTERS`."""
    return text[start : start + _PHRASE_CHARACTERS].lstrip().partition("\n")[0].strip()
