r"""math_dapo and AIME: the last `Answer: …` line; score 1 or -1, as verl gives it, and the part `acc` 1 or 0.

Only an answer line with a colon counts, wherever it stands in the visible text (verl looks at the last 300 characters
alone: case A2). Of a line with a box, the box is read. `extra_info.reward_kwargs.strict_box_verify=true` reads the last
box instead. No such line is no answer: -1.

What counts as equal is `equality`, for all verifiers; what Minerva's normalisation forgives (units, `\text`, `$`,
thousands, `\frac12`) is forgiven there too. Unlike Minerva's, the left-hand side of an equation is not thrown away:
`x=5` and `2+3=5` are 5, `x+5=5` is not (case A13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from argosy.reward.verifiers.base import options
from argosy.reward.verifiers.extraction import find_answer_line, find_box
from argosy.reward.verifiers.maths import judge_answer, read_gold
from argosy.types.records import Failed, Outcome

RIGHT, WRONG = 1.0, -1.0


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the stated answer equals the gold, else -1. Its option is `strict_box_verify`."""
    chosen = options(extra_info, {"strict_box_verify": False})
    if isinstance(chosen, Failed):
        return chosen
    gold = read_gold(ground_truth)
    if isinstance(gold, Failed):
        return gold
    answer = find_box(solution) if chosen["strict_box_verify"] else find_answer_line(solution)
    outcome = judge_answer(gold, answer)
    return replace(outcome, score=RIGHT if outcome.score else WRONG)
