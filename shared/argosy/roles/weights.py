"""Where weights can be fetched: the trainer, or any rollout server that holds the version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest

SOURCE = "source"
"""Key in the metadata of an error for which not the server that was asked is to blame, but where it got its weights
from: the address of that. Whoever asked may name another source."""


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


@runtime_checkable
class HoldsVersions(Protocol):
    """A holder that may have the bytes of another version than the one that it serves: of the next, staged."""

    async def manifest_of(self, version: PolicyVersion) -> WeightsManifest:
        """The manifest of a version whose bytes can be streamed now. NotFoundError without them."""
        ...


@runtime_checkable
class PassesOn(Protocol):
    """A server from which others can take the weights that it has."""

    def weight_source(self) -> WeightSource:
        """Its weights."""
        ...
