"""Ragged columns: one numpy array of values and one of offsets. Sequences are never padded outside a kernel.

Dimension letters, here and everywhere: B sequences in a batch, T tokens of one sequence, N = Σ T tokens in all, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """B sequences of different lengths, stored end to end.

    >>> column = Ragged.from_rows([[1.0, 2.0], [], [3.0]], np.float32)
    >>> column.lengths.tolist(), column[2].tolist(), len(column)
    ([2, 0, 1], [3.0], 3)
    """

    values: Array
    """All values, [N]."""
    offsets: npt.NDArray[np.int64]
    """Where each sequence starts, and N at the end, [B + 1], int64; sequence i is values[offsets[i]:offsets[i+1]]."""

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or len(self.offsets) == 0 or self.offsets[-1] != len(self.values):
            raise ValueError(
                f"offsets must end at the number of values, got {self.offsets[-1:]} for {len(self.values)} values"
            )

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any] | Array], dtype: npt.DTypeLike) -> Ragged:
        """Join rows of any lengths into one column of the given dtype."""
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        values = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
        return cls(values, offsets)

    @classmethod
    def from_lengths(cls, values: Array, lengths: npt.ArrayLike) -> Ragged:
        """Cut `values` [N] into sequences of the given lengths [B]."""
        counts = np.asarray(lengths, np.int64)
        return cls(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sequence, [B]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Array:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[Array]:
        for index in range(len(self)):
            yield self[index]

    def take(self, indices: Sequence[int] | Array) -> Ragged:
        """The named sequences, in the named order."""
        return Ragged.from_rows([self[int(index)] for index in indices], self.values.dtype)

    def segment_sum(self) -> npt.NDArray[np.float64]:
        """Σ over each sequence in float64, [B]; an empty sequence sums to 0."""
        owner = np.repeat(np.arange(len(self)), self.lengths)
        return np.asarray(np.bincount(owner, weights=self.values, minlength=len(self)), np.float64)

    def spread(self, per_sequence: npt.ArrayLike) -> Array:
        """One value per sequence [B] repeated over its tokens, [N]."""
        return np.repeat(np.asarray(per_sequence), self.lengths)
