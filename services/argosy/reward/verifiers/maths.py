r"""MATH and its kin: the answer equals the gold as a text, as a number, as a list, or as math-verify judges it.

The answer is found by the rule in `extraction`; without a marker it is the last number when the gold is a number, else
the whole response. Then, in this order:

1. equal spelling (after `latex.plain`, without spaces): right;
2. a single-letter gold `A` … `J` is a choice: `\text{C}`, `(C)` and `C: 14 m` choose C (case A18);
3. a gold of words (`\text{Evelyn}`, `east`) is compared as words;
4. two numbers are compared exactly (`numbers`: 0.5714 is not 4/7; a percent sign is a unit or 1/100);
5. lists: see `lists` (case A6: a part of the answers is not the answer; bare lists have no order, brackets have one);
6. formulas: math-verify's parser and grader on exactly these two texts, never on several candidates. Equations may be
   scaled: `10x-4y+18=0` is `5x-2y+9=0` (case A13). Decimals must be exact to ten places.

Formulas that `complexity` calls too costly are compared by 1–5 only. A gold that can't be read is
Failed("bad_ground_truth"), whatever the answer (case A9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers import algebra
from argosy.reward.verifiers.base import bad_ground_truth, gold_text, judged
from argosy.reward.verifiers.complexity import MOST_DEPTH, depth, is_too_costly
from argosy.reward.verifiers.exact import find_text_answer
from argosy.reward.verifiers.extraction import Answer
from argosy.reward.verifiers.latex import TEXT_CLOSE, TEXT_OPEN, plain, squeezed, unwrap, words
from argosy.reward.verifiers.lists import Items, split_items, without_name
from argosy.reward.verifiers.numbers import Number, read_number
from argosy.reward.verifiers.numeric import find_numeric_answer, read_answer
from argosy.types.records import Outcome

prepare = algebra.prepare

MOST_CHARACTERS = 4000
"""A longer answer is compared by its spelling only."""
_CHOICE = re.compile(r"\(?([A-J])\)?(?:\s*[:.)]\s.*|\s*[:.)]?)", re.DOTALL)
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_FORMULA_WORDS = frozenset(
    {
        "and",
        "or",
        "if",
        "for",
        "where",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "ln",
        "exp",
        "mod",
        "gcd",
        "lcm",
        "max",
        "min",
        "det",
        "pi",
        "sqrt",
        "begin",
        "end",
        "frac",
        "infty",
    }
)
_COMMAND_OR_TEXT = re.compile(rf"\\[A-Za-z]+(?:\{{[A-Za-z]+\}})?|{TEXT_OPEN}[^{TEXT_CLOSE}]*{TEXT_CLOSE}")
_SPAN = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)")
_ALL_WORDS = re.compile(r"[A-Za-z][A-Za-z .,'’:-]*")


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the stated answer equals the gold, else 0."""
    text = gold_text(ground_truth)
    if text is None or not squeezed(text):
        return bad_ground_truth(ground_truth, "is empty or neither a text nor a number")
    problem = unreadable(text)
    if problem:
        return bad_ground_truth(ground_truth, problem)
    gold_number = read_number(text)
    if gold_number is not None:
        answer = find_numeric_answer(solution)
        return _judge_number(text, gold_number, answer)
    answer = _only_span(find_text_answer(solution))
    return judged(bool(answer.text) and equal(text, answer.text), answer, note=_note(answer.text))


def _only_span(answer: Answer) -> Answer:
    """For a line of prose with one formula in it, that formula."""
    spans = _SPAN.findall(answer.text) if answer.marker in ("line", "hash", "tag") else []
    return Answer(spans[0][0] or spans[0][1], answer.marker) if len(spans) == 1 else answer


def equal(gold: str, stated: str) -> bool:
    """Whether two texts state the same answer, by the rules above. `gold` and `stated` are not exchangeable."""
    spelled, spelled_gold = squeezed(stated), squeezed(gold)
    if not spelled:
        return False
    if spelled == spelled_gold:
        return True
    if len(stated) > MOST_CHARACTERS or depth(stated) > MOST_DEPTH:
        return False
    if re.fullmatch(r"\(?[A-J]\)?", spelled_gold):
        return _choice(stated) == spelled_gold.strip("()")
    if is_words(gold):
        return words(gold) == words(stated)
    return _equal_items(split_items(gold), split_items(stated), gold, stated)


def is_words(text: str) -> bool:
    r"""Whether a gold is meant as words: a `\text{…}` box, or only words, one of three letters or more."""
    bare = plain(unwrap(text))
    if bare.startswith(TEXT_OPEN) and bare.endswith(TEXT_CLOSE) and bare.count(TEXT_OPEN) == 1:
        return True
    found = [word.lower() for word in _WORD.findall(bare)]
    return _ALL_WORDS.fullmatch(bare) is not None and any(
        word not in _FORMULA_WORDS and len(word) > 2 for word in found
    )


def unreadable(gold: str) -> str:
    """What is wrong with a gold; empty if it can be read. Prose with a number in it is neither words nor a formula."""
    bare = plain(unwrap(gold))
    if is_words(gold) or read_number(gold) is not None or is_too_costly(gold):
        return ""
    formulas = _COMMAND_OR_TEXT.sub(" ", bare)
    stray = [word for word in _WORD.findall(formulas) if word.islower() and word not in _FORMULA_WORDS]
    if len(stray) > 1 or any(len(word) > 3 for word in stray):
        return "is prose with formulas in it, neither words nor one formula"
    if not all(map(_is_readable, split_items(gold).texts)):
        return "can't be parsed as a formula"
    return ""


def _is_readable(text: str) -> bool:
    bare = plain(unwrap(text))
    return TEXT_OPEN in bare or is_words(text) or is_too_costly(text) or bool(read_number(text)) or algebra.parses(bare)


def _judge_number(gold: str, gold_number: Number, answer: Answer) -> Outcome:
    stated = read_answer(answer)
    if stated is not None:
        return judged(gold_number.equals(stated), answer)
    right = bool(answer.text) and equal(gold, answer.text)
    return judged(right, answer, note=_note(answer.text))


def _note(text: str) -> str:
    return "too costly to evaluate: compared as text" if is_too_costly(text) else ""


def _choice(stated: str) -> str | None:
    bare = plain(unwrap(stated)).replace(TEXT_OPEN, "").replace(TEXT_CLOSE, "").strip()
    match = _CHOICE.fullmatch(bare)
    return match.group(1) if match else None


def _equal_items(gold: Items, stated: Items, gold_text: str, stated_text: str) -> bool:
    if gold.is_single and stated.is_single:
        return _equal_one(without_name(gold_text, stated_text), without_name(stated_text, gold_text))
    if gold.shape == stated.shape and len(gold.texts) == len(stated.texts):
        return _equal_in_order(gold, stated) if gold.ordered else _equal_in_any_order(gold, stated)
    # One text may stand for several values, `1 \pm \sqrt{2}`, or a union of intervals.
    either_single = gold.is_single or stated.is_single
    has_symbols = re.search(r"\\pm|\\mp|\\cup|\\in\b", gold_text + stated_text) is not None
    return either_single and has_symbols and _equal_formulas(gold_text, stated_text)


def _equal_in_order(gold: Items, stated: Items) -> bool:
    return all(map(equal, gold.texts, stated.texts))


def _equal_in_any_order(gold: Items, stated: Items) -> bool:
    left = list(stated.texts)
    for text in gold.texts:
        spelled = squeezed(text)
        match = next((other for other in left if squeezed(other) == spelled), None)
        if match is None:
            match = next((other for other in left if equal(text, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _equal_one(gold: str, stated: str) -> bool:
    if squeezed(gold) == squeezed(stated):
        return True
    gold_number, stated_number = read_number(gold), read_number(stated)
    if gold_number is not None and stated_number is not None:
        return gold_number.equals(stated_number)
    gold_items, stated_items = split_items(gold), split_items(stated)
    if not (gold_items.is_single and stated_items.is_single):
        return _equal_items(gold_items, stated_items, gold, stated)
    return _equal_formulas(gold, stated)


def _equal_formulas(gold: str, stated: str) -> bool:
    """What math-verify says; it would take the right-hand side of a lone equation for the answer (case A13)."""
    lone_equation = ("=" in gold) != ("=" in stated)
    if lone_equation or is_too_costly(gold) or is_too_costly(stated):
        return False
    return algebra.equal(plain(unwrap(gold)), plain(unwrap(stated)))
