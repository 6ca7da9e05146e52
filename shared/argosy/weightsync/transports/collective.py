"""The collective transport: NCCL or gloo in groups made for this transfer alone, by a process that can be killed.

Each receiver has a group of two with the sender (or all have one: `SendOptions.broadcast`), so that one that dies or
stalls holds up nobody else. Buckets are slices of both sides' flat buffers, which are laid out alike: nothing is copied
on the way, and each bucket is checked while the next arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from argosy.roles.weights import WeightSource
from argosy.types.errors import ArgosyError, InvalidInputError
from argosy.types.records import TransferOffer, WeightsManifest
from argosy.weightsync.buffers import FlatBuffer
from argosy.weightsync.collective.process import Worker, borrow, close_idle, give_back
from argosy.weightsync.staging import Staging
from argosy.weightsync.transports.base import SendOptions, TransferPlan, delta_metrics

if TYPE_CHECKING:
    from argosy.weightsync.snapshot import Snapshot

_LOG = logging.getLogger(__name__)
_OPEN_DEADLINE_S = 60.0
"""For a worker to start, when the transfer's own deadline is longer."""
_LAST_WORDS_S = 1.0


class CollectiveTransfer:
    """A worker that sends to every group until it is done or closed."""

    def __init__(
        self, worker: Worker, offers: tuple[TransferOffer, ...], sending: asyncio.Task[dict[str, Any]]
    ) -> None:
        self._worker = worker
        self._offers = offers
        self._sending = sending

    @property
    def offers(self) -> tuple[TransferOffer, ...]:
        """One for each receiver."""
        return self._offers

    @property
    def worker_pid(self) -> int:
        """Of the process that sends."""
        return self._worker.pid

    async def close(self) -> None:
        """Keep the worker if every receiver got everything, else kill it: that ends all groups."""
        # Receivers know a moment before the sender does that all is there.
        await asyncio.wait({self._sending}, timeout=_LAST_WORDS_S)
        self._sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, ArgosyError):
            answer = await self._sending
            failed = [text for text in answer["sent"] if text]
            if not failed and self._worker.alive:
                await self._worker.call({"op": "close"}, _OPEN_DEADLINE_S)
                give_back(self._worker)
                return
            _LOG.warning("a weight transfer failed for %d groups: %s", len(failed), failed[:1])
        self._worker.kill()
        self._worker.close_pipes()


async def open_transfer(snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> CollectiveTransfer:
    """Start (or take) a worker that listens, and have it send to whoever joins its groups.

    InvalidInputError where the snapshot can't be shared with a worker, UnavailableError if that doesn't start.
    """
    memory = _memory(snapshot.buffer)
    worker = borrow()
    try:
        opening = {"op": "open", "host": options.host, "backend": options.backend, "timeout_s": plan.deadline_s}
        opened = await worker.call(opening, min(plan.deadline_s, _OPEN_DEADLINE_S))
    except BaseException:
        worker.kill()
        worker.close_pipes()
        raise
    count = plan.receiver_count
    sizes = [count + 1] if options.broadcast else [2] * count
    names = [f"{plan.fence}/{index}" for index in range(len(sizes))]
    command = memory | {
        "op": "send",
        "bucket_bytes": options.bucket_bytes,
        "backend": opened["backend"],
        "groups": [{"name": name, "size": size} for name, size in zip(names, sizes, strict=True)],
        "timeout_s": plan.deadline_s,
    }
    # A store on loopback is told as such; elsewhere the receiver puts the host in by which it knows the sender.
    host = options.host if options.host.startswith("127.") else ""
    offers = tuple(
        TransferOffer(
            "collective",
            plan.sync_id,
            snapshot.manifest.version,
            f"{host}:{opened['port']}",
            rank=index + 1 if options.broadcast else 1,
            world_size=count + 1 if options.broadcast else 2,
            options={
                "group": names[0 if options.broadcast else index],
                "backend": opened["backend"],
                "bucket_bytes": str(options.bucket_bytes),
            }
            | delta_metrics(snapshot),
        )
        for index in range(count)
    )
    return CollectiveTransfer(worker, offers, asyncio.create_task(worker.call(command, plan.deadline_s)))


async def receive(
    offer: TransferOffer, source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float
) -> None:
    """Have a worker join the offer's group and fill the staging's memory.

    Raises:
        DeadlineError: `deadline_s` seconds have passed; the worker is killed, so nobody writes into the memory later.
        UnavailableError: the sender or a worker died, or nobody listens at the offer's endpoint.
    """
    buffer = staging.buffer
    command = _memory(buffer) | {
        "op": "receive",
        "endpoint": offer.endpoint,
        "group": offer.options["group"],
        "backend": offer.options["backend"],
        "bucket_bytes": int(offer.options["bucket_bytes"]),
        "rank": offer.rank,
        "size": offer.world_size,
        "spans": list(buffer.spans.values()),
        "timeout_s": deadline_s,
    }
    worker = borrow()
    try:
        answer = await worker.call(command, deadline_s)
        staging.accept(buffer.places(), answer["checksums"])
    except BaseException:
        worker.kill()
        worker.close_pipes()
        raise
    give_back(worker)


def _memory(buffer: FlatBuffer) -> dict[str, Any]:
    if buffer.file is None:
        raise InvalidInputError(
            "weights can't be sent by a collective from or to this process: this system has no memory files (or the "
            "model no weights); set argosy.weight_sync.transport=stream"
        )
    return {"path": buffer.file.path, "size_bytes": buffer.memory.size, "file_id": buffer.file.file_id}


def release() -> None:
    """End the workers that wait for the next transfer: they map what they moved last."""
    close_idle()
