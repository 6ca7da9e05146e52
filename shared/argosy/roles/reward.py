"""The reward role: text and truth in, an outcome per sample out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from argosy.types.records import RewardCapabilities, ScoreRequest, ScoreResult


class Reward(Protocol):
    """One reward server (or the scorers in this process)."""

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One result per item, matched by id. A verifier's failure is an outcome (Failed), not an exception."""
        ...

    async def capabilities(self) -> RewardCapabilities:
        """Which data sources it knows."""
        ...
