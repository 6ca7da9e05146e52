"""The stream transport: the receiver pulls chunks from a WeightSource, in process or over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, cast

from argosy.roles.weights import WeightSource
from argosy.types.errors import DeadlineError
from argosy.types.records import TransferOffer, WeightChunk, WeightsManifest
from argosy.weightsync.staging import Staging
from argosy.weightsync.transports.base import PlainTransfer, SendOptions, TransferPlan, delta_metrics

if TYPE_CHECKING:
    from argosy.weightsync.snapshot import Snapshot


async def open_transfer(snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> PlainTransfer:
    """Receivers pull from the WeightsService that is there anyway; they are told how many streams to open."""
    settings = {"streams": str(options.streams)} | delta_metrics(snapshot)
    offer = TransferOffer("stream", plan.sync_id, snapshot.manifest.version, "", options=settings)
    return PlainTransfer((offer,) * plan.receiver_count)


async def receive(
    offer: TransferOffer, source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float
) -> None:
    """Pull every chunk from `source`. See `pull`."""
    await pull(source, manifest, staging, deadline_s)


async def pull(source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float) -> None:
    """Pull every chunk of the manifest's version into `staging`, one at a time, so that memory stays bounded and a slow
    receiver slows the sender down.

    A stream that ends early is not seen here but by `staging.finish()`, which names what is missing.

    Raises:
        DeadlineError: `deadline_s` seconds have passed.
        CorruptDataError: a chunk that does not belong or has a wrong checksum.
        NotFoundError: the source holds another version.
        UnavailableError: the source died.
    """
    chunks = cast("AsyncGenerator[WeightChunk, None]", source.stream_weights(manifest.version, base=staging.base))
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
