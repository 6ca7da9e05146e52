"""Small things that all scorers by models share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from argosy.types.records import Outcome, Scored


def with_parts(outcome: Outcome, parts: Mapping[str, float | str | bool]) -> Outcome:
    """The outcome with further parts, if it has a score."""
    if not isinstance(outcome, Scored):
        return outcome
    return dataclasses.replace(outcome, parts={**outcome.parts, **parts})
