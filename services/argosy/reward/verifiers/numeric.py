"""gsm8k and `argosy/numeric_match`: the gold is one number, and the stated answer must equal it exactly.

The answer is found by the rule in `extraction` (strong marker, answer line, last number of the text) and read by the
rules in `numbers`. An answer that states several candidates ("5, 6, or 7") states none: score 0 (case A6). A gold that
is no number is Failed("bad_ground_truth").

`extra_info.reward_kwargs.method` (or the data source `argosy/gsm8k_strict`, `argosy/gsm8k_flexible`) chooses where the
answer is looked for, as verl's `method` does:

- `marked`, the default: the rule above;
- `strict`: the last `####` line alone; without one there is no answer;
- `flexible`: the last number of the text, whatever is marked. This one pays for listing candidates and ending with the
  right one; it is for measuring models that know no marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from argosy.reward.verifiers.base import bad_ground_truth, gold_text, judged, options
from argosy.reward.verifiers.extraction import Answer, after_thinking, find_answer, find_hash
from argosy.reward.verifiers.numbers import Number, last_number, read_number, read_stated_number, right_hand_side
from argosy.types.records import Failed, Outcome


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the stated number equals the gold, else 0. Its option is `method`."""
    chosen = options(extra_info, {"method": "marked"})
    if isinstance(chosen, Failed):
        return chosen
    find = METHODS.get(chosen["method"])
    if find is None:
        return Failed("bad_options", f"method must be one of {', '.join(METHODS)}, got {chosen['method']!r}")
    return _judge(find(solution), ground_truth)


def verify_strict(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """`verify` with the method `strict`."""
    return _judge(find_hash(solution), ground_truth)


def verify_flexible(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """`verify` with the method `flexible`."""
    return _judge(find_last_number(solution), ground_truth)


def _judge(answer: Answer, ground_truth: Any) -> Outcome:
    text = gold_text(ground_truth)
    if text is None:
        return bad_ground_truth(ground_truth, "is empty or neither a text nor a number")
    gold = read_number(text)
    if gold is None:
        return bad_ground_truth(ground_truth, "can't be read as one number")
    stated = read_answer(answer)
    if stated is None:
        note = answer.text and "no single number in the answer"
        return judged(False, Answer("", answer.marker), rule="no answer", note=note)
    return judged(gold.equals(stated), answer, rule="number")


def find_numeric_answer(solution: str) -> Answer:
    """The answer's text; the last number where nothing is marked."""
    answer = find_answer(solution, numeric=True)
    return answer if answer.explicit else find_last_number(solution)


def find_last_number(solution: str) -> Answer:
    """The last number, whatever is marked."""
    return Answer(last_number(after_thinking(solution)), "none")


METHODS: Mapping[str, Callable[[str], Answer]] = {
    "marked": find_numeric_answer,
    "strict": find_hash,
    "flexible": find_last_number,
}
"""Where the answer is looked for."""


def read_answer(answer: Answer) -> Number | None:
    """The number that an answer states, read by the gold's type: a number in parentheses is a number (case A1)."""
    text = answer.text
    stated = read_number(text)
    if stated is None and text.startswith("(") and text.endswith(")"):
        stated = read_number(text[1:-1])
    if stated is not None or answer.marker == "none":
        return stated
    return right_hand_side(text) if answer.marker == "boxed" else read_stated_number(text)
