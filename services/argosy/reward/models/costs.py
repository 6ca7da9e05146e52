"""What was asked of a model and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Usage:
    """Counts; they add up.

    >>> total = Usage(requests=1, prompt_tokens=10)
    >>> total.add(Usage(requests=2, cost=0.5))
    >>> total.requests, total.cost
    (3, 0.5)
    """

    requests: int = 0
    """Sent, repeats included."""
    repeats: int = 0
    """Of those, sent again after a fault."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In the unit of the configured prices."""

    def add(self, other: Usage) -> None:
        """Add another's counts to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per million tokens."""

    prompt: float = 0.0
    completion: float = 0.0

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Of one answer."""
        return (self.prompt * prompt_tokens + self.completion * completion_tokens) / 1e6
