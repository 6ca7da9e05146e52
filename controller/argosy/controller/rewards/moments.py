"""Running mean and standard deviation of a service's scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MIN_SPREAD = 1e-6
"""Least standard deviation that scores are divided by: a service that always says the same gives 0, not noise."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of all scores so far.

    >>> Moments().with_scores([1.0, 2.0, 3.0]).spread == (2 / 3) ** 0.5
    True
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def spread(self) -> float:
        """Standard deviation of the population; 0 before the second score."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def with_scores(self, scores: Iterable[float]) -> Moments:
        """With further scores, in their order (Welford 1962, Technometrics 4(3), "Note on a method …")."""
        count, mean, squares = self.count, self.mean, self.squares
        for score in scores:
            count += 1
            change = score - mean
            mean += change / count
            squares += change * (score - mean)
        return Moments(count, mean, squares)

    def normalized(self, score: float) -> float:
        """(score - mean) / max(spread, 1e-6); the score itself while nothing is known."""
        return (score - self.mean) / max(self.spread, MIN_SPREAD) if self.count else score

    def state(self) -> dict[str, Any]:
        """For a checkpoint. JSON keeps every bit of a float."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Moments:
        """What `state` gave."""
        return cls(int(state["count"]), float(state["mean"]), float(state["squares"]))
