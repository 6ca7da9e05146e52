"""Weights on their way through a rollout server: from a source that may fail it, and to others from what has come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import cast

from argosy.roles.weights import SOURCE, WeightSource
from argosy.types.errors import NotFoundError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest
from argosy.weightsync.crc import crc32
from argosy.weightsync.staging import Staging

MIN_SILENCE_S, MAX_SILENCE_S = 2.0, 30.0
"""Bounds of the time that a source may send nothing before it is taken for lost."""
SILENCE_SHARE = 0.25
"""Of the deadline: there must be time left for another source."""


def name_of(source: WeightSource) -> str:
    """As errors tell it."""
    return source.address or "this process"


class WatchedSource:
    """A source whose failures say that they are its own (`SOURCE` in their metadata), and which may not be silent for
    long: a frozen sender keeps its connection, and would cost the whole deadline.

    Args:
        source: Where the weights come from.
        deadline_s: Of the whole transfer.
    """

    def __init__(self, source: WeightSource, deadline_s: float) -> None:
        self._source = source
        self._silence_s = min(max(SILENCE_SHARE * deadline_s, MIN_SILENCE_S), MAX_SILENCE_S)

    @property
    def address(self) -> str:
        """The source's."""
        return self._source.address

    async def get_manifest(self) -> WeightsManifest:
        """The source's."""
        return await self._source.get_manifest()

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """The source's chunks. UnavailableError if none comes for too long."""
        chunks = cast("AsyncGenerator[WeightChunk, None]", self._source.stream_weights(version, names, base=base))
        try:
            async with aclosing(chunks):
                while True:
                    async with asyncio.timeout(self._silence_s):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
        except TimeoutError as error:
            where = name_of(self._source)
            raise UnavailableError(
                f"{where} has sent nothing of weights {version.short} for {self._silence_s:g} s", **{SOURCE: where}
            ) from error
        except (UnavailableError, NotFoundError) as error:
            error.metadata.setdefault(SOURCE, name_of(self._source))
            raise


async def chunks_of(staging: Staging, names: Collection[str]) -> AsyncIterator[WeightChunk]:
    """What has come, in pieces as a sender makes them; of the named tensors, or of all. Their checksums are of the
    bytes as they are now: that these are the right ones, the receiver finds by the manifest."""
    buffer = staging.buffer
    for place in buffer.places():
        if not names or place.name in names:
            data = buffer.memory[place.start : place.start + place.size].data
            yield WeightChunk(place.name, place.offset, data, crc32(data))
            await asyncio.sleep(0)  # in one process nothing else suspends
