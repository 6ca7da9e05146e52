"""Small things that all scorers by models share."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from argosy.types.errors import InvalidInputError
from argosy.types.records import Outcome, Scored, ScoreRequest


def checked(items: Sequence[ScoreRequest]) -> None:
    """Raises InvalidInputError if a sample is in the batch twice."""
    for sample, count in Counter(item.sample_id for item in items).items():
        if count > 1:
            raise InvalidInputError(f"sample {sample} is twice in one batch", field="sample_id")


def with_parts(outcome: Outcome, parts: Mapping[str, float | str | bool]) -> Outcome:
    """The outcome with further parts, if it has a score."""
    if not isinstance(outcome, Scored):
        return outcome
    return dataclasses.replace(outcome, parts={**outcome.parts, **parts})
