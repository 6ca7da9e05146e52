"""The trainer as a holder of weights: always the version published last."""

from __future__ import annotations

from collections.abc import AsyncIterator

from argosy.types.errors import NotFoundError
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest
from argosy.weightsync import Snapshot


class PublishedWeights:
    """Implements `argosy.roles.weights.WeightSource`."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        """The published version; None before the first publish_weights and after load_checkpoint."""

    @property
    def address(self) -> str:
        """Always "": in this process."""
        return ""

    @property
    def version(self) -> PolicyVersion | None:
        """Of the published weights."""
        return self.snapshot.manifest.version if self.snapshot else None

    async def get_manifest(self) -> WeightsManifest:
        """The manifest of the published version. NotFoundError if there is none."""
        return await self.published().get_manifest()

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """The bytes of the named tensors (all, if empty). NotFoundError if another version is published."""
        async for chunk in self.published().stream_weights(version, names, base=base):
            yield chunk

    def published(self) -> Snapshot:
        """The published version. NotFoundError if there is none."""
        if self.snapshot is None:
            raise NotFoundError("this trainer has published no weights yet")
        return self.snapshot
