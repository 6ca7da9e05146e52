"""What every scorer that asks others does at its door: no sample twice in a batch, and a bound on what waits."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from argosy.types.errors import InvalidInputError, OverloadedError
from argosy.types.records import ScoreRequest


def checked(items: Sequence[ScoreRequest]) -> None:
    """Raises InvalidInputError if a sample is in the batch twice."""
    for sample, count in Counter(item.sample_id for item in items).items():
        if count > 1:
            raise InvalidInputError(f"sample {sample} is twice in one batch", field="sample_id")


class WaitingRoom:
    """Counts the samples that wait or are being judged. For one event loop.

    Args:
        size: Most samples at the same time.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._unfinished = 0

    @contextlib.contextmanager
    def holding(self, items: Sequence[ScoreRequest]) -> Iterator[None]:
        """Room for all of the batch during the body. Raises OverloadedError, or as `checked`."""
        checked(items)
        if self._unfinished + len(items) > self._size:
            raise OverloadedError(
                f"{self._unfinished} samples wait to be judged; there is no room for {len(items)} more"
            )
        self._unfinished += len(items)
        try:
            yield
        finally:
            self._unfinished -= len(items)
