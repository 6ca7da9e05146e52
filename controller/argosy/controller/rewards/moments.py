"""Running mean and standard deviation of a service's scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MIN_SPREAD = 1e-6
"""Below it scores are only centred: after a hundred equal scores the first other one would be a million."""


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
        """(score - mean) / spread; score - mean where the spread is below 1e-6; the score while nothing is known."""
        spread = self.spread
        return (score - self.mean) / (spread if spread >= MIN_SPREAD else 1.0) if self.count else score

    def state(self) -> dict[str, Any]:
        """For a checkpoint. JSON keeps every bit of a float."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Moments:
        """What `state` gave."""
        return cls(int(state["count"]), float(state["mean"]), float(state["squares"]))
