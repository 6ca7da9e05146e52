"""The collective transport: NCCL or gloo in groups made for this transfer alone, by a process that can be killed.

Each receiver has a group of two with the sender (or all have one: `SendOptions.broadcast`), so that one that dies or
stalls holds up nobody else. Buckets are slices of both sides' flat buffers, which are laid out alike: nothing is copied
on the way, and each bucket is checked while the next arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
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
Call = Callable[[dict[str, Any], float], Awaitable[dict[str, Any]]]
"""(command, deadline_s) → {"checksums": crc32 of each part}."""


class CollectiveTransfer:
    """A worker that sends to every group until it is done or closed."""

    def __init__(
        self, worker: Worker, offers: tuple[TransferOffer, ...], sending: asyncio.Task[dict[str, Any]]
    ) -> None:
        self._worker = worker
        self._offers = offers
        self._sending = sending
        self._closed = False

    @property
    def offers(self) -> tuple[TransferOffer, ...]:
        """One for each receiver."""
        return self._offers

    @property
    def worker_pid(self) -> int:
        """Of the process that sends."""
        return self._worker.pid

    async def close(self) -> None:
        """Keep the worker if every receiver got everything, else kill it: that ends all groups.

        A caller that is cancelled meanwhile leaves no worker behind either.
        """
        if self._closed:
            return
        self._closed = True
        kept = False
        try:
            # Receivers know a moment before the sender does that all is there.
            await asyncio.wait({self._sending}, timeout=_LAST_WORDS_S)
            kept = self._all_sent() and await self._returned()
        finally:
            self._sending.cancel()
            if not kept:
                await self._worker.end()

    def _all_sent(self) -> bool:
        if not self._sending.done() or self._sending.cancelled():
            return False
        error = self._sending.exception()
        failed = [str(error)] if error else [text for text in self._sending.result()["sent"] if text]
        if failed:
            _LOG.warning("a weight transfer failed for %d groups: %s", len(failed), failed[:1])
        return not failed

    async def _returned(self) -> bool:
        try:
            await self._worker.call({"op": "close"}, _OPEN_DEADLINE_S)
        except ArgosyError as error:
            _LOG.warning("a worker of weight transfers is not used again: %s", error)
            return False
        return give_back(self._worker)


async def open_transfer(snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> CollectiveTransfer:
    """Start (or take) a worker that listens, and have it send to whoever joins its groups.

    InvalidInputError where the snapshot can't be shared with a worker, UnavailableError if that doesn't start.
    """
    memory = _memory(snapshot.buffer)
    async with _borrowed() as worker:
        opening = {"op": "open", "host": options.host, "timeout_s": plan.deadline_s}
        opened = await worker.call(opening, min(plan.deadline_s, _OPEN_DEADLINE_S))
    count = plan.receiver_count
    sizes = [count + 1] if options.broadcast else [2] * count
    names = [f"{plan.fence}/{index}" for index in range(len(sizes))]
    command = memory | {
        "op": "send",
        "bucket_bytes": options.bucket_bytes,
        "backend": options.backend,
        "device": options.device,
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
                "backend": options.backend,
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
    async with _borrowed() as worker:
        await receive_by(worker.call, offer, staging, deadline_s)
    if not give_back(worker):
        await worker.end()


async def receive_by(call: Call, offer: TransferOffer, staging: Staging, deadline_s: float) -> None:
    """As `receive`, by whoever carries the command out: a process of an engine, say. Raises what `call` does."""
    calling = asyncio.ensure_future(call(receive_command(offer, staging, deadline_s), deadline_s))
    try:
        await asyncio.sleep(0)  # it is on its way now
        places = staging.buffer.places()
        answer = await calling
    finally:
        calling.cancel()
    staging.accept(places, answer["checksums"])


def receive_command(offer: TransferOffer, staging: Staging, deadline_s: float) -> dict[str, Any]:
    """What `argosy.weightsync.collective.receiving.receive_into` has to know, as JSON has it.

    InvalidInputError where the staging's memory can't be shared with another process.
    """
    buffer = staging.buffer
    return _memory(buffer) | {
        "op": "receive",
        "endpoint": offer.endpoint,
        "group": offer.options["group"],
        "backend": offer.options["backend"],
        "bucket_bytes": int(offer.options["bucket_bytes"]),
        "rank": offer.rank,
        "size": offer.world_size,
        "device": own_device(),
        "spans": list(buffer.spans.values()),
        "timeout_s": deadline_s,
    }


@contextlib.asynccontextmanager
async def _borrowed() -> AsyncIterator[Worker]:
    """A worker, ended if anything goes wrong with it, a cancelled caller included."""
    worker = borrow()
    try:
        yield worker
    except BaseException:
        await worker.end()
        raise


def own_device() -> str:
    """The GPU that this process computes on; "" if it uses none itself (an engine in a process of its own does)."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    return f"cuda:{torch.cuda.current_device()}"


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
