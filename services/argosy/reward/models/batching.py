"""Sequences → batches with bounded padding. Pure.

A batch is a rectangle, rows × its longest sequence. Sequences of like length go together, so that padding is bounded:
each row is at least `fill` of its batch's width, and the rectangle holds at most `max_tokens` places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from argosy.types.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a forward pass may be."""

    max_tokens: int = 16384
    """Places of the rectangle, padding included. One longer sequence goes alone."""
    max_rows: int | None = None
    """Sequences; None: any number."""
    fill: float = 0.75
    """Share of its batch's width that each sequence fills at least, in (0, 1]."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or (self.max_rows is not None and self.max_rows < 1) or not 0 < self.fill <= 1:
            raise ConfigError(f"batches need positive sizes and a fill in (0, 1], got {self}")


def plan_batches(lengths: Sequence[int], limits: BatchLimits) -> list[list[int]]:
    """Indices of the sequences in each batch, longest first; every index is in exactly one.

    >>> plan_batches([3, 10, 9, 2, 10], BatchLimits(max_tokens=20))
    [[1, 4], [2], [0], [3]]
    """
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batches:
            rows = len(batches[-1]) + 1
            room = rows * width <= limits.max_tokens and (limits.max_rows is None or rows <= limits.max_rows)
            if room and lengths[index] >= limits.fill * width:
                batches[-1].append(index)
                continue
        batches.append([index])
        width = lengths[index]
    return batches
