"""Where weights can be fetched: the trainer, or any rollout server that holds the version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest


class WeightSource(Protocol):
    """A holder of one policy version's weights."""

    @property
    def address(self) -> str:
        """host:port of its WeightsService; "" in this process."""
        ...

    async def get_manifest(self) -> WeightsManifest:
        """The manifest of the version that it holds (the trainer: last published). NotFoundError if none."""
        ...

    def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """The bytes of the named tensors (all, if empty), in manifest order. NotFoundError if it is another version.

        `base` is a version that the asker holds: chunks may be deltas to it, if this holder has them.
        """
        ...
