"""A set of sample ids that stays small: whatever a run has finished, in a few ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from argosy.types.ids import SampleId

_Line = tuple[int, int, int]


class IdSet:
    """Positions as sorted disjoint ranges, for each (data epoch, k, attempt).

    Prompts are drawn in the order of their positions and finished in nearly that order, so that the number of ranges
    follows what is in flight and not the length of the run.

    >>> ids = IdSet(SampleId(0, position, 0) for position in (0, 1, 2, 5))
    >>> SampleId(0, 2, 0) in ids, SampleId(0, 3, 0) in ids, len(ids)
    (True, False, 4)
    >>> ids.plain()
    [[0, [[0, 0]], [0, 3, 5, 6]]]
    """

    def __init__(self, samples: Iterable[SampleId] = ()) -> None:
        self._bounds: dict[_Line, list[int]] = {}
        self._size = 0
        for sample in samples:
            self.add(sample)

    def add(self, sample: SampleId) -> bool:
        """Put one in; False if it was there already."""
        bounds = self._bounds.setdefault((sample.data_epoch, sample.k, sample.attempt), [])
        place = bisect_right(bounds, sample.position)
        if place % 2:
            return False
        follows = place > 0 and bounds[place - 1] == sample.position
        leads = place < len(bounds) and bounds[place] == sample.position + 1
        if follows and leads:
            del bounds[place - 1 : place + 1]
        elif follows:
            bounds[place - 1] += 1
        elif leads:
            bounds[place] -= 1
        else:
            bounds[place:place] = [sample.position, sample.position + 1]
        self._size += 1
        return True

    def __contains__(self, sample: SampleId) -> bool:
        bounds = self._bounds.get((sample.data_epoch, sample.k, sample.attempt), ())
        return bisect_right(bounds, sample.position) % 2 == 1

    def at(self, data_epoch: int, position: int) -> list[SampleId]:
        """The samples of one prompt that are in it."""
        lines = sorted(line for line in self._bounds if line[0] == data_epoch)
        return [one for _, k, attempt in lines if (one := SampleId(data_epoch, position, k, attempt)) in self]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[SampleId]:
        for (epoch, k, attempt), bounds in sorted(self._bounds.items()):
            for start, end in zip(bounds[::2], bounds[1::2], strict=True):
                yield from (SampleId(epoch, position, k, attempt) for position in range(start, end))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdSet) and self.plain() == other.plain()

    __hash__ = None  # type: ignore[assignment]

    def plain(self) -> list[list[Any]]:
        """For JSON: [data epoch, [[k, attempt] …], [first, end, first, end …]], lines with equal ranges together."""
        together: dict[tuple[int, tuple[int, ...]], list[list[int]]] = {}
        for (epoch, k, attempt), bounds in sorted(self._bounds.items()):
            if bounds:
                together.setdefault((epoch, tuple(bounds)), []).append([k, attempt])
        return [[epoch, draws, list(bounds)] for (epoch, bounds), draws in together.items()]

    @classmethod
    def from_plain(cls, plain: Iterable[Iterable[Any]]) -> IdSet:
        """What `plain` gave. Raises ValueError on ranges that overlap or are out of order."""
        made = cls()
        for epoch, draws, bounds in plain:
            if len(bounds) % 2 or list(bounds) != sorted(set(bounds)):
                raise ValueError(f"ranges must be ascending pairs, got {bounds}")
            for k, attempt in draws:
                made._bounds[int(epoch), int(k), int(attempt)] = list(map(int, bounds))
                made._size += sum(bounds[1::2]) - sum(bounds[::2])
        return made
