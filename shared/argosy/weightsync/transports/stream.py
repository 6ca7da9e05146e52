"""The stream transport: the receiver pulls chunks from a WeightSource, in process or over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from argosy.roles.weights import WeightSource
from argosy.types.errors import DeadlineError
from argosy.types.records import TransferOffer, WeightChunk, WeightsManifest
from argosy.weightsync.native.library import load_library
from argosy.weightsync.staging import Staging
from argosy.weightsync.transports.base import PlainTransfer, SendOptions, TransferPlan, delta_metrics

if TYPE_CHECKING:
    from argosy.weightsync.snapshot import Snapshot

_FREED_ONCE_BYTES = 16 << 20


async def open_transfer(snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> PlainTransfer:
    """Receivers pull from the WeightsService that is there anyway; they are told how many streams to open."""
    settings = {"streams": str(options.streams)} | delta_metrics(snapshot)
    offer = TransferOffer("stream", plan.sync_id, snapshot.manifest.version, "", options=settings)
    return PlainTransfer((offer,) * plan.receiver_count)


async def receive(
    offer: TransferOffer, source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float
) -> None:
    """Pull every chunk from `source`, by as many streams as the offer says. See `pull`."""
    await pull(source, manifest, staging, deadline_s, streams=int(offer.options.get("streams", "1")))


async def pull(
    source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float, *, streams: int = 1
) -> None:
    """Pull every chunk of the manifest's version into `staging`, one at a time, so that memory stays bounded and a slow
    receiver slows the sender down.

    A stream that ends early is not seen here but by `staging.finish()`, which names what is missing.

    Args:
        source: A holder of the version.
        manifest: Of the version.
        staging: Empty, of this manifest.
        deadline_s: Seconds for all of it.
        streams: Streams side by side, each of a share of the tensors: one alone waits for the network in turn with the
            sender's work. In one process there is nothing to wait for, and always one.

    Raises:
        DeadlineError: `deadline_s` seconds have passed.
        CorruptDataError: a chunk that does not belong or has a wrong checksum.
        NotFoundError: the source holds another version.
        UnavailableError: the source died.
    """
    if source.address:
        keep_freed_memory()
    shares = _shares(manifest, streams) if source.address else [()]
    try:
        async with asyncio.timeout(deadline_s):
            await asyncio.to_thread(load_library)  # at a machine's first start it is compiled, some seconds
            if len(shares) == 1:
                await _pull_some(source, manifest, staging, shares[0])
                return
            await _together([_pull_some(source, manifest, staging, names) for names in shares])
    except TimeoutError as error:
        raise DeadlineError(
            f"weights {manifest.version.short} from {source.address or 'this process'}: "
            f"{staging.received_byte_count} of {staging.size_bytes} bytes came within {deadline_s:g} s",
            version=manifest.version.short,
        ) from error


def keep_freed_memory() -> None:
    """Have glibc keep some MB that are freed at its heap's end, as in a process that has once freed a large block.

    Each chunk's message would else be made in memory fresh from the system, page by page: half of a receiver's time.
    (Freeing a block of its own mapping raises the limit of such blocks to its size, and what is kept to twice that.)
    """
    np.empty(_FREED_ONCE_BYTES, np.uint8)


async def _pull_some(source: WeightSource, manifest: WeightsManifest, staging: Staging, names: tuple[str, ...]) -> None:
    chunks = cast(
        "AsyncGenerator[WeightChunk, None]", source.stream_weights(manifest.version, names, base=staging.base)
    )
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            staging.write(chunk)


async def _together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of it, or the first failure; nothing runs on afterwards."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _shares(manifest: WeightsManifest, streams: int) -> list[tuple[str, ...]]:
    """Names of the tensors with bytes, split evenly by size; the largest first, each to the share that has least.

    One share of all is (), which a source takes for all of them.
    """
    specs = sorted((spec for spec in manifest.tensors if not spec.tied_to), key=lambda spec: -spec.size_bytes)
    count = max(1, min(streams, len(specs)))
    if count == 1:
        return [()]
    shares: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for spec in specs:
        least = sizes.index(min(sizes))
        shares[least].append(spec.name)
        sizes[least] += max(1, spec.size_bytes)
    return [tuple(share) for share in shares]
