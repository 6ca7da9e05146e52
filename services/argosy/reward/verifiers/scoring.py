"""The one way to run a verifier: in workers for training and validation, in `argosy reward try`, in benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers.base import Verifier, shorten
from argosy.reward.verifiers.penalties import TOKEN_COUNT, penalised
from argosy.types.records import Failed, Outcome


def score(verifier: Verifier, solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
    """The verifier's outcome, with the penalties that the row asks for.

    `extra_info["reward_kwargs"]` holds the verifier's own options and `penalties`; a name that means nothing is
    Failed("bad_options"), so that a misspelt one isn't left out in silence.
    """
    given = extra_info.get("reward_kwargs") or {}
    if not isinstance(given, Mapping):
        return Failed("bad_options", f"extra_info.reward_kwargs must be a mapping, got {shorten(repr(given))}")
    own = {name: value for name, value in given.items() if name != "penalties"}
    unknown = [name for name in own if name not in verifier.options]
    if unknown:
        known = ", ".join((*verifier.options, "penalties"))
        return Failed("bad_options", f"{verifier.name} has no option {unknown[0]!r}; there are: {known}")
    outcome = verifier.verify(solution, ground_truth, {**extra_info, "reward_kwargs": own})
    count = extra_info.get(TOKEN_COUNT)
    return penalised(outcome, solution, given["penalties"], count) if "penalties" in given else outcome
