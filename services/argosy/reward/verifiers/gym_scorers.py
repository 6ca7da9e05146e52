"""`reasoning_gym_scorer/NAME`: the library's own scorer of the dataset NAME, partial credit and all.

Many puzzles have several right answers (a path, a schedule, a grid); only their own scorer knows. It gets the answer
that our rule finds in the response, and the entry as `argosy data make` writes it: the question and the metadata are in
extra_info, the answer is the ground truth. Needs argosy[data] in the reward service.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from argosy.reward.verifiers.base import bad_ground_truth, judged
from argosy.reward.verifiers.exact import find_text_answer
from argosy.types.records import Failed, Outcome, Scored

TASK_KEY = "task"
"""Member of extra_info that names the dataset."""


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """The library's score, as a rule between 0 and 1; `acc` is 1 where it is 1."""
    name = extra_info.get(TASK_KEY)
    if not isinstance(name, str):
        return Failed("bad_ground_truth", f"extra_info.{TASK_KEY} must name a dataset of reasoning-gym, got {name!r}")
    metadata = extra_info.get("metadata", {})
    try:
        entry = {
            "question": extra_info.get("question", ""),
            "answer": ground_truth,
            "metadata": json.loads(metadata) if isinstance(metadata, str) else dict(metadata),
        }
    except (ValueError, TypeError) as error:
        return bad_ground_truth(ground_truth, f"has metadata that is no JSON object ({error})")
    try:
        scorer = _scorer(name)
    except ImportError as error:
        return Failed(
            "not_installed", f"reasoning-gym's scorers need the package: pip install 'argosy[data]' ({error})"
        )
    except ValueError as error:
        return Failed("bad_ground_truth", f"reasoning-gym has no dataset {name!r}: {error}")
    answer = find_text_answer(solution)
    if not answer.text:
        return judged(False, answer, rule="no answer")
    score = float(scorer(answer.text, entry))
    verdict = judged(score == 1.0, answer, rule="reasoning-gym")
    return Scored(score, verdict.parts)


def prepare() -> None:
    """Import the library, if it is there; where it isn't, each sample says so."""
    try:
        import reasoning_gym  # noqa: F401
    except ImportError:
        return


@functools.lru_cache(maxsize=256)
def _scorer(name: str) -> Callable[[str, Mapping[str, Any]], float]:
    """Of a dataset. Raises ImportError, and ValueError for a name that there isn't."""
    from reasoning_gym import get_score_answer_fn

    scorer: Callable[[str, Mapping[str, Any]], float] = get_score_answer_fn(name)
    return scorer
