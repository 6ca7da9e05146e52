"""Answers to questions of fact: normalised exact match (`searchR1_*`) and token F1 (`argosy/token_f1`).

Both read the last `<answer>…</answer>` alone and compare it, without case, punctuation, the articles a, an, the and
runs of spaces (the normalisation of SQuAD, arXiv:1606.05250), with each accepted text; the best counts. The gold is a
text, a list of texts, or verl's `{"target": …}`. A text of which nothing is left by the normalisation is compared
without case and outer spaces only, so that "A" and "C++" stay answers; an empty answer is never right (case A8).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers.base import bad_ground_truth, gold_text, judged
from argosy.reward.verifiers.extraction import Answer, find_tag
from argosy.types.records import Failed, Outcome, Scored

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = {ord(sign): None for sign in string.punctuation + "‘’“”´"}
_MOST_CHARACTERS = 4000
"""A longer answer is no answer to a question of fact."""


def verify_exact(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the answer is one of the accepted texts, else 0."""
    golds = _golds(ground_truth)
    if isinstance(golds, Failed):
        return golds
    answer = _find(solution)
    if not answer.text:
        return judged(False, answer, rule="no answer")
    return judged(normalised(answer.text) in map(normalised, golds), answer, rule="normalised words")


def verify_f1(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score the F1 of the answer's words with the best of the accepted texts, 0 … 1; `acc` is the exact match."""
    golds = _golds(ground_truth)
    if isinstance(golds, Failed):
        return golds
    answer = _find(solution)
    if not answer.text:
        exact = judged(False, answer, rule="no answer")
        return Scored(0.0, {**exact.parts, "f1": 0.0})
    exact = judged(normalised(answer.text) in map(normalised, golds), answer, rule="token F1")
    f1 = max(token_f1(answer.text, gold) for gold in golds)
    return Scored(f1, {**exact.parts, "f1": f1})


def normalised(text: str) -> str:
    """SQuAD's normal form.

    >>> normalised(" The Eiffel  Tower! "), normalised("A")
    ('eiffel tower', 'a')
    """
    lowered = unicodedata.normalize("NFKC", text).strip().casefold()
    bare = " ".join(_ARTICLES.sub(" ", lowered.translate(_PUNCTUATION)).split())
    return bare or lowered


def token_f1(stated: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words, each counted as often as it stands there.

    >>> token_f1("the red fox", "a red fox in snow")
    0.6666666666666666
    """
    left, right = normalised(stated).split(), normalised(gold).split()
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right)) if common else 0.0


def _find(solution: str) -> Answer:
    answer = find_tag(solution)
    return answer if len(answer.text) <= _MOST_CHARACTERS else Answer("", answer.marker)


def _golds(ground_truth: Any) -> list[str] | Failed:
    accepted = ground_truth.get("target") if isinstance(ground_truth, Mapping) else ground_truth
    texts = list(map(gold_text, accepted if isinstance(accepted, list | tuple) else [accepted]))
    golds = [text for text in texts if text is not None and normalised(text)]
    if not golds or len(golds) != len(texts):
        return bad_ground_truth(ground_truth, "is empty or holds something that is no text")
    return golds
