"""One try of some samples in calls of a size that the service takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from argosy.controller.rewards.calls import is_worth_repeating, reason_of, suspects_of
from argosy.types.ids import SampleId
from argosy.types.records import Outcome, ScoreRequest


@dataclass(slots=True)
class Round:
    """One try of some samples: outcomes, and who gave them."""

    outcomes: dict[SampleId, Outcome] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    suspects: set[SampleId] = field(default_factory=set)
    """One of them may be at fault for all of its call, so each gets a call of its own next."""

    def take(self, outcomes: Mapping[SampleId, Outcome]) -> None:
        """Add those of one call."""
        self.outcomes |= outcomes
        self.suspects |= suspects_of(outcomes)

    def pending(self, items: Iterable[ScoreRequest]) -> list[ScoreRequest]:
        """Those that another try may mend."""
        return [
            item
            for item in items
            if is_worth_repeating(self.outcomes[item.sample_id])
            or (item.sample_id in self.suspects and reason_of(self.outcomes[item.sample_id]) == "refused")
        ]


def batches(items: Sequence[ScoreRequest], size: int) -> Iterator[Sequence[ScoreRequest]]:
    """In parts of at most `size` items."""
    size = max(size, 1)
    for start in range(0, len(items), size):
        yield items[start : start + size]
