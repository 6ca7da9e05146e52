"""What a rollout core offers to its servicer beyond the role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from argosy.roles.rollout import Rollout
from argosy.roles.weights import WeightSource
from argosy.rollout.engines.events import Event
from argosy.types.records import GenerateRequest


class ServedRollout(Rollout, Protocol):
    """A core behind the gRPC servicer, whatever its engine."""

    def generate_runs(
        self, requests: Sequence[GenerateRequest], *, deadline_s: float, interval_tokens: int | None = None
    ) -> AsyncIterator[Event]:
        """As `generate`, and in between a TokenRun of each sample every `interval_tokens` (None: the core's own).

        Closing the iterator ends the samples that are unfinished.
        """
        ...

    def weight_source(self) -> WeightSource:
        """The weights that it holds, for a newcomer."""
        ...
