"""The stream transport: the receiver pulls chunks from a WeightSource, in process or over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import cast

from argosy.roles.weights import WeightSource
from argosy.types.errors import DeadlineError
from argosy.types.records import WeightChunk, WeightsManifest
from argosy.weightsync.staging import Staging


async def receive(source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float) -> None:
    """Pull every chunk of the manifest's version into `staging`, one at a time, so that memory stays bounded and a slow
    receiver slows the sender down.

    A stream that ends early is not seen here but by `staging.finish()`, which names what is missing.

    Raises:
        DeadlineError: `deadline_s` seconds have passed.
        CorruptDataError: a chunk that does not belong or has a wrong checksum.
        NotFoundError: the source holds another version.
        UnavailableError: the source died.
    """
    chunks = cast("AsyncGenerator[WeightChunk, None]", source.stream_weights(manifest.version))
    try:
        async with asyncio.timeout(deadline_s), contextlib.aclosing(chunks):
            async for chunk in chunks:
                staging.write(chunk)
    except TimeoutError as error:
        raise DeadlineError(
            f"weights {manifest.version.short} from {source.address or 'this process'}: "
            f"{staging.received_byte_count} of {staging.size_bytes} bytes came within {deadline_s:g} s",
            version=manifest.version.short,
        ) from error
