"""Weights in the type that they are computed with, cast once for as long as they stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class WeightCasts:
    """Autocast casts each weight at each use: several times per micro-batch. In a `fixed` scope it is done once.

    Several weights that are multiplied with the same input can be cast into one matrix, for one larger product.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], Tensor] = {}
        self._wanted: dict[tuple[int, ...], tuple[Sequence[Tensor], torch.dtype]] = {}
        self._depth = 0

    @property
    def keeping(self) -> bool:
        """Whether in a scope."""
        return self._depth > 0

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Within it no weight changes; what was cast is kept until its end. Scopes may be nested.

        What earlier scopes asked for is cast at once: made between activations that come and go, the casts would leave
        gaps in the heap.
        """
        self._depth += 1
        try:
            if self._depth == 1:
                for weights, dtype in list(self._wanted.values()):
                    self.get(weights, dtype)
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._kept.clear()

    def get(self, weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The weights [O_i, E] below one another, [ΣO_i, E] in `dtype`; not to be written to."""
        first = weights[0].detach()
        if len(weights) == 1 and first.dtype == dtype:
            return first
        key = tuple(map(id, weights))
        found = self._kept.get(key)
        if found is None or found.dtype != dtype:
            found = first.new_empty((sum(map(len, weights)), first.shape[1]), dtype=dtype)
            for part, weight in zip(torch.split(found, [len(weight) for weight in weights]), weights, strict=True):
                part.copy_(weight.detach())
            if self._depth:
                self._kept[key] = found
                self._wanted[key] = (tuple(weights), dtype)
        return found
