"""The shared-memory transport: the receiver maps the sender's snapshot read-only, copies and checks it.

It copies (in several threads, at close to the speed of memory) in place of loading from the mapping: a receiver that is
late, after the sender has gone on to the next version, would otherwise swap in half of each.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from argosy.roles.weights import WeightSource
from argosy.types.errors import DeadlineError, InvalidInputError
from argosy.types.records import TransferOffer, WeightsManifest
from argosy.weightsync.copying import copy_checked
from argosy.weightsync.hosts import host_id
from argosy.weightsync.memory import KeptMapping
from argosy.weightsync.native.library import load_library
from argosy.weightsync.staging import Staging
from argosy.weightsync.transports.base import PlainTransfer, SendOptions, TransferPlan, delta_metrics

if TYPE_CHECKING:
    from argosy.weightsync.snapshot import Snapshot

_MAPPED = KeptMapping()


async def open_transfer(snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> PlainTransfer:
    """Nothing to do but to tell where the snapshot lies: it is kept as it is until the transfer is closed."""
    file = snapshot.buffer.file
    if file is None:
        raise InvalidInputError(
            "weights can't be sent by shared memory from here: this system has no memory files (or the model no "
            "weights); set argosy.weight_sync.transport=stream"
        )
    settings = {
        "size_bytes": str(snapshot.buffer.memory.size),
        "file_id": file.file_id,
        "host_id": host_id(),
        "threads": str(options.streams),
    }
    settings |= delta_metrics(snapshot)
    offer = TransferOffer("shared_memory", plan.sync_id, snapshot.manifest.version, file.path, options=settings)
    return PlainTransfer((offer,) * plan.receiver_count)


async def receive(
    offer: TransferOffer, source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float
) -> None:
    """Copy the mapped snapshot into `staging`, with the checksum of every part that was copied.

    Raises:
        DeadlineError: `deadline_s` seconds have passed.
        InvalidInputError: the sender is on another machine (or in another container, or another user's).
        NotFoundError: the sender has gone, or has another version by now.
    """
    if offer.options.get("host_id") != host_id():
        raise InvalidInputError("the weights are offered by shared memory, but from another host or container")
    stop = threading.Event()
    copying: asyncio.Future[None] | None = None
    try:
        async with asyncio.timeout(deadline_s):
            await asyncio.to_thread(load_library)  # at a machine's first start it is compiled, some seconds
            copying = asyncio.ensure_future(asyncio.to_thread(_copy, offer, staging, stop))
            await asyncio.shield(copying)
    except (TimeoutError, asyncio.CancelledError) as error:
        stop.set()
        if copying is not None:
            await asyncio.wait({copying})  # a part's time: nobody may write into the staging after this call
        if isinstance(error, asyncio.CancelledError):
            raise
        raise DeadlineError(
            f"weights {manifest.version.short} could not be copied within {deadline_s:g} s",
            version=manifest.version.short,
        ) from error


def _copy(offer: TransferOffer, staging: Staging, stop: threading.Event) -> None:
    buffer = staging.buffer
    places = buffer.places()
    if not places:
        return
    mapped = _MAPPED.get(offer.endpoint, int(offer.options["size_bytes"]), offer.options["file_id"])
    if mapped.size != buffer.memory.size:
        raise InvalidInputError(
            f"the offered memory has {mapped.size} bytes, the manifest needs {buffer.memory.size}", field="offer"
        )
    threads = int(offer.options.get("threads", "1"))
    staging.accept(places, copy_checked(mapped, buffer.memory, places, threads=threads, stop=stop))


def release() -> None:
    """Unmap what was received last."""
    _MAPPED.forget()
