r"""geometry3k: 0.9 for the right answer and 0.1 for the shape `<think>…</think> … \boxed{…}`.

The answer is the last box alone, compared as in `equality`; the shape is `formatting.has_think_box_shape`. Parts: `acc`
(the answer) and `format` (the shape), each 1 or 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers.extraction import find_box
from argosy.reward.verifiers.formatting import has_think_box_shape
from argosy.reward.verifiers.maths import judge_answer, read_gold
from argosy.types.records import Failed, Outcome, Scored

FORMAT_WEIGHT = 0.1


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 0.9 · acc + 0.1 · format."""
    gold = read_gold(ground_truth)
    if isinstance(gold, Failed):
        return gold
    outcome = judge_answer(gold, find_box(solution))
    shape = float(has_think_box_shape(solution))
    score = (1 - FORMAT_WEIGHT) * outcome.score + FORMAT_WEIGHT * shape
    return Scored(score, {**outcome.parts, "format": shape})
