r"""MATH, numina and their kin: the answer equals the gold as a text, number or list, by value, or says math-verify.

The answer is found by the rule in `extraction`; without a marker it is the last number when the gold is a number, else
the whole response. What counts as equal is in `equality`. A gold that can't be read is Failed("bad_ground_truth"),
whatever the answer (case A9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers import algebra
from argosy.reward.verifiers.base import bad_ground_truth, gold_text, judged
from argosy.reward.verifiers.equality import Verdict, judge, unreadable
from argosy.reward.verifiers.exact import find_text_answer
from argosy.reward.verifiers.extraction import Answer
from argosy.reward.verifiers.latex import squeezed
from argosy.reward.verifiers.numbers import read_number
from argosy.reward.verifiers.numeric import find_numeric_answer, read_answer
from argosy.types.records import Failed, Outcome, Scored

prepare = algebra.prepare

_SPAN = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)")


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the stated answer equals the gold, else 0."""
    gold = read_gold(ground_truth)
    if isinstance(gold, Failed):
        return gold
    is_number = read_number(gold) is not None
    answer = find_numeric_answer(solution) if is_number else _only_span(find_text_answer(solution))
    return judge_answer(gold, answer)


def read_gold(ground_truth: Any) -> str | Failed:
    """The gold as text, or what is wrong with it."""
    text = gold_text(ground_truth)
    if text is None or not squeezed(text):
        return bad_ground_truth(ground_truth, "is empty or neither a text nor a number")
    problem = unreadable(text)
    return bad_ground_truth(ground_truth, problem) if problem else text


def judge_answer(gold: str, answer: Answer) -> Scored:
    """Compare an answer that was found with a gold that was read."""
    if not answer.text:
        return judged(False, answer, rule="no answer")
    gold_number = read_number(gold)
    stated = read_answer(answer) if gold_number is not None else None
    if gold_number is not None and stated is not None:
        verdict = Verdict(gold_number.equals(stated), "number")
    else:
        verdict = judge(gold, answer.text)
    note = "too costly to evaluate: compared as text" if verdict.rule == "costly" else ""
    return judged(verdict.right, answer, rule=verdict.rule, note=note)


def _only_span(answer: Answer) -> Answer:
    """For a line of prose with one formula in it, that formula."""
    spans = _SPAN.findall(answer.text) if answer.marker in ("line", "hash", "tag") else []
    return Answer(spans[0][0] or spans[0][1], answer.marker) if len(spans) == 1 else answer
