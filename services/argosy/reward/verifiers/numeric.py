"""gsm8k and `argosy/numeric_match`: the gold is one number, and the stated answer must equal it exactly.

The answer is found by the rule in `extraction` (strong marker, answer line, last number of the text) and read by the
rules in `numbers`. An answer that states several candidates ("5, 6, or 7") states none: score 0 (case A6). A gold that
is no number is Failed("bad_ground_truth").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers.base import bad_ground_truth, gold_text, judged
from argosy.reward.verifiers.extraction import Answer, after_thinking, find_answer
from argosy.reward.verifiers.numbers import Number, last_number, read_number, read_stated_number, right_hand_side
from argosy.types.records import Outcome


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the stated number equals the gold, else 0."""
    text = gold_text(ground_truth)
    if text is None:
        return bad_ground_truth(ground_truth, "is empty or neither a text nor a number")
    gold = read_number(text)
    if gold is None:
        return bad_ground_truth(ground_truth, "can't be read as one number")
    answer = find_numeric_answer(solution)
    stated = read_answer(answer)
    if stated is None:
        note = answer.text and "no single number in the answer"
        return judged(False, Answer("", answer.marker), rule="no answer", note=note)
    return judged(gold.equals(stated), answer, rule="number")


def find_numeric_answer(solution: str) -> Answer:
    """The answer's text; the last number where nothing is marked."""
    answer = find_answer(solution, numeric=True)
    return answer if answer.explicit else Answer(last_number(after_thinking(solution)), "none")


def read_answer(answer: Answer) -> Number | None:
    """The number that an answer states, read by the gold's type: a number in parentheses is a number (case A1)."""
    text = answer.text
    stated = read_number(text)
    if stated is None and text.startswith("(") and text.endswith(")"):
        stated = read_number(text[1:-1])
    if stated is not None or answer.marker == "none":
        return stated
    return right_hand_side(text) if answer.marker == "boxed" else read_stated_number(text)
