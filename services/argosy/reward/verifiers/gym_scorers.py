"""`reasoning_gym_scorer/NAME`: the library's own scorer of the dataset NAME, partial credit and all.

Many puzzles have several right answers (a path, a schedule, a grid); only their own scorer knows. It gets the answer
that our rule finds in the response, and the entry as `argosy data make` writes it: the question and the metadata are in
extra_info, the answer is the ground truth. Needs argosy[data] in the reward service.

Only scorers that don't evaluate the answer are used, and they run in a bounded child of the worker (`gym_answers`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from argosy.reward.verifiers import algebra
from argosy.reward.verifiers.base import bad_ground_truth, judged
from argosy.reward.verifiers.exact import find_text_answer
from argosy.reward.verifiers.gym_answers import as_made, refusal, shown
from argosy.reward.verifiers.isolation import OverrunError
from argosy.types.records import Failed, Outcome, Scored

TASK_KEY = "task"
"""Member of extra_info that names the dataset."""

_Scorer = Callable[[str, Mapping[str, Any]], float]


def verify(solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """The library's score, as a rule between 0 and 1; `acc` is 1 where it is 1. A dataset whose scorer would evaluate
    the answer is Failed("refused")."""
    name = extra_info.get(TASK_KEY)
    if not isinstance(name, str):
        return Failed("bad_ground_truth", f"extra_info.{TASK_KEY} must name a dataset of reasoning-gym, got {name!r}")
    metadata = extra_info.get("metadata", {})
    try:
        entry = {
            "question": extra_info.get("question", ""),
            "answer": ground_truth,
            "metadata": as_made(name, dict(json.loads(metadata) if isinstance(metadata, str) else metadata)),
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
    if isinstance(scorer, Failed):
        return scorer
    answer = find_text_answer(solution)
    if not answer.text:
        return judged(False, answer, rule="no answer")
    try:
        score = algebra.bounded(lambda: _score(scorer, shown(name, answer.text, entry), entry))
    except OverrunError as error:
        return judged(False, answer, rule="costly", note=f"too costly for reasoning-gym's scorer: {error}")
    if not math.isfinite(score):
        return Failed("exception", f"reasoning-gym's scorer of {name!r} gave {score}")
    verdict = judged(score == 1.0, answer, rule="reasoning-gym")
    return Scored(score, verdict.parts)


def prepare() -> None:
    """Import the library, if it is there; where it isn't, each sample says so."""
    try:
        import reasoning_gym  # noqa: F401
    except ImportError:
        return


def _score(scorer: _Scorer, text: str, entry: Mapping[str, Any]) -> float:
    """Several scorers raise on an answer that they can't read: 0, unless they raise on the row's own answer too."""
    try:
        return float(scorer(text, entry))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 -- whose fault it is, the next call tells
        scorer(entry["answer"], entry)  # raises what the row is at fault for
        return 0.0


@functools.lru_cache(maxsize=256)
def _scorer(name: str) -> _Scorer | Failed:
    """Of a dataset, or why it may not be used. Raises ImportError, and ValueError for a name that there isn't."""
    from reasoning_gym import get_score_answer_fn
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise ValueError(f"there are {', '.join(sorted(DATASETS))}"[:500])
    problem = refusal(name, importlib.metadata.version("reasoning-gym"))
    if problem:
        return Failed(
            "refused",
            f"reasoning-gym's scorer of {name!r} {problem}. Use reasoning_gym/{name}, which compares with the row's "
            "answer, or a server of yours in a container, argosy.reward.kind=http",
        )
    scorer: _Scorer = get_score_answer_fn(name)
    return scorer
