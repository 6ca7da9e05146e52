r"""`argosy/multiple_choice`: the gold is a letter, and the answer chooses it (case A18).

`C`, `(C)`, `c`, `\text{C}`, `C: 14 m`, `C) 14 m` and "option C" choose C; two letters ("B or C") choose none. With
`extra_info.choices` (a list of texts for A, B, …, or a mapping of letters to texts) an answer that is one choice's
text, word for word, chooses it too. The answer is found by the rule in `extraction`; without a marker the whole
response is it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from argosy.reward.verifiers.base import bad_ground_truth, gold_text, judged
from argosy.reward.verifiers.exact import find_text_answer
from argosy.reward.verifiers.latex import words
from argosy.types.records import Failed, Outcome

_GOLD = re.compile(r"\(?([A-Za-z])[).]?")
_CHOSEN = re.compile(r"(?:the )?(?:option |choice |answer )?\(?([a-z])\)?(?P<rest>[.:)].*|)", re.DOTALL)
_WORD = re.compile(r"[\w']+")
_ANOTHER = re.compile(r"\(\s*[a-z]\s*\)|\b(?:or|and|also)\s+\(?[a-z]\)?(?![\w'])")
_LETTERS = frozenset("abcdefghij")
_JOINERS = frozenset({"or", "and", "also", "but", "not", "maybe", "perhaps"})


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the answer chooses the gold's letter, else 0."""
    text = gold_text(ground_truth)
    match = _GOLD.fullmatch(words(text)) if text is not None else None
    if match is None:
        return bad_ground_truth(ground_truth, "is not the letter of a choice")
    texts = _texts(extra_info.get("choices"))
    if isinstance(texts, Failed):
        return texts
    answer = find_text_answer(solution)
    if not answer.text:
        return judged(False, answer, rule="no answer")
    chosen = chosen_letter(answer.text, texts)
    return judged(chosen == match.group(1).lower(), answer, rule="choice" if chosen else "no choice")


def chosen_letter(text: str, choices: Mapping[str, str]) -> str | None:
    """The letter that a text chooses, in lower case; `choices` are texts by letter.

    >>> chosen_letter("(C)", {}), chosen_letter("14 m", {"c": "14 m", "d": "15 m"}), chosen_letter("B or C", {})
    ('c', 'c', None)
    """
    bare = words(text)
    same = [letter for letter, choice in choices.items() if choice == bare]
    if same:
        return same[0] if len(same) == 1 else None
    match = _CHOSEN.fullmatch(bare)
    return match.group(1) if match and not names_another(match.group("rest")) else None


def names_another(rest: str) -> bool:
    """Whether what follows a letter, in lower case, chooses another: it is nothing but letters, or says "or D".

    >>> names_another(": or d"), names_another(". d"), names_another(": 14 m"), names_another(": point d")
    (True, True, False, False)
    """
    found = _WORD.findall(rest)
    only_letters = all(word in _JOINERS or word in _LETTERS for word in found)
    return _ANOTHER.search(rest) is not None or (only_letters and any(word in _LETTERS for word in found))


def _texts(choices: Any) -> dict[str, str] | Failed:
    if choices is None:
        return {}
    if isinstance(choices, Mapping):
        return {str(letter).strip("(). ").lower(): words(str(text)) for letter, text in choices.items()}
    if isinstance(choices, Sequence) and not isinstance(choices, str) and len(choices) <= len(string.ascii_lowercase):
        return {letter: words(str(text)) for letter, text in zip(string.ascii_lowercase, choices, strict=False)}
    return Failed("bad_options", f"extra_info.choices must be a list or a mapping of texts, got {choices!r:.100}")
