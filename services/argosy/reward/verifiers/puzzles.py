"""`reasoning_gym/*`, as `argosy data make` writes them: a numeric gold is judged as a number, any other as words.

The answer is found by the same rule as for gsm8k (a marker if there is one, else the last number of the text), before
and after training, so that learning a format alone earns nothing that the first evaluation didn't count. How many
answers were marked is the part `format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers import exact, numeric
from argosy.reward.verifiers.base import gold_text
from argosy.reward.verifiers.numbers import read_number
from argosy.types.records import Outcome


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """Score 1 if the stated answer equals the gold, else 0."""
    text = gold_text(ground_truth)
    if text is not None and read_number(text) is not None:
        return numeric.verify(solution, ground_truth, extra_info)
    return exact.verify(solution, ground_truth, extra_info)
