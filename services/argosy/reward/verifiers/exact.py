"""`argosy/exact_match`: the stated answer is the gold, word for word.

Case, runs of spaces, Markdown, `\\text{}`, outer quotes and a final full stop don't count; nothing else is forgiven: a
substring is not a match, and an empty answer never is (case A8). A gold that is a list of texts accepts any of them.
Without a marker the whole response is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers.base import bad_ground_truth, gold_text, judged
from argosy.reward.verifiers.extraction import Answer, after_thinking, find_answer
from argosy.reward.verifiers.latex import words
from argosy.types.records import Outcome


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the stated answer is (one of) the gold's texts, else 0."""
    accepted = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    golds = [words(text) for text in map(gold_text, accepted) if text is not None]
    if not golds or len(golds) != len(accepted) or not all(golds):
        return bad_ground_truth(ground_truth, "is empty or holds something that is no text")
    answer = find_text_answer(solution)
    if not answer.text:
        return judged(False, answer, rule="no answer")
    return judged(words(answer.text) in golds, answer, rule="words")


def find_text_answer(solution: str) -> Answer:
    """The answer's text; the whole response where nothing is marked."""
    answer = find_answer(solution, numeric=False)
    return answer if answer.explicit else Answer(after_thinking(solution).strip(), "none")
