"""The disk transport: versions lie in a folder that sender and receivers share, as whole ones and deltas (`chain`).

Nothing has to be reachable but the folder, a receiver may come hours later, and any reader of safetensors can open what
is there. The versions stay after the transfer: newcomers read from the nearest whole one on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from argosy.roles.weights import WeightSource
from argosy.types.errors import AbortedError, DeadlineError, InvalidInputError, StorageError
from argosy.types.records import TransferOffer, WeightsManifest
from argosy.weightsync.chain_reader import read_version
from argosy.weightsync.chain_writer import publish
from argosy.weightsync.staging import Staging
from argosy.weightsync.threads import start_thread
from argosy.weightsync.transports.base import PlainTransfer, SendOptions, TransferPlan, delta_metrics

if TYPE_CHECKING:
    from argosy.weightsync.snapshot import Snapshot

Result = TypeVar("Result")

MAX_LEFT_BEHIND = 4
"""Threads that hang on a dead file server after their deadline: with so many, no further one is sent there."""


async def open_transfer(snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> PlainTransfer:
    """Write what the folder lacks to lead to the snapshot's version.

    Raises:
        InvalidInputError: no folder is configured.
        StorageError: the disk is full or can't be written, or another process writes there; what the folder had before
            is as it was.
        DeadlineError: the plan's time is up.
    """
    if not options.folder:
        raise InvalidInputError(
            "weights can't be sent through a disk without argosy.weight_sync.disk_path", field="folder"
        )
    folder = _absolute(options.folder)
    snapshot.hold()  # as long as the thread may read it, which can be longer than the transfer is open
    await _within(
        plan.deadline_s,
        f"weights {snapshot.manifest.version.short} could not be written to {folder}",
        lambda stop: publish(folder, snapshot, options.chain, stop.event),
        ended=snapshot.release,
    )
    told = delta_metrics(snapshot)
    offer = TransferOffer("disk", plan.sync_id, snapshot.manifest.version, str(folder), options=told)
    return PlainTransfer((offer,) * plan.receiver_count)


def _absolute(folder: str) -> Path:
    """The receivers have working folders of their own."""
    return Path(folder).expanduser().absolute()


async def receive(
    offer: TransferOffer, source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float
) -> None:
    """Read the version by the cheapest sound chain: from what `staging` holds already, or from the nearest whole one.

    Raises:
        DeadlineError: `deadline_s` seconds have passed; nothing is written into the staging after that.
        NotFoundError: the folder has no chain to the version (or isn't shared with the sender).
        CorruptDataError: every chain has damage, named link by link.
    """
    buffer, held = staging.buffer, staging.base

    def read(stop: Stop) -> None:
        found = read_version(Path(offer.endpoint), manifest, buffer, held, stop.guard)
        stop.guard(lambda: staging.accept(found.places, found.checksums, found.read_byte_count))

    await _within(deadline_s, f"weights {manifest.version.short} could not be read from {offer.endpoint}", read)


class Stop:
    """Lets an event loop give up on a thread: once it is set, no guarded piece of work begins or is under way."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Lock()

    def set(self) -> None:
        """Waits for the piece of work that is under way (a part's time)."""
        self.event.set()
        with self._lock:
            pass

    def guard(self, work: Callable[[], None]) -> None:
        """Do `work`, or raise AbortedError."""
        with self._lock:
            if self.event.is_set():
                raise AbortedError("reading was given up")
            work()


async def _within(
    deadline_s: float, what: str, work: Callable[[Stop], Result], ended: Callable[[], None] = lambda: None
) -> Result:
    """Run `work` in a thread. One that hangs on a dead file server is left behind, unable to do harm: `ended` is called
    in the event loop when it is over, be it long after the deadline."""
    stop = Stop()
    try:
        running = _in_thread(lambda: work(stop), stop.event.set)
    except BaseException:
        ended()
        raise
    running.add_done_callback(lambda done: ended())
    try:
        async with asyncio.timeout(deadline_s):
            return await asyncio.shield(running)
    except (TimeoutError, asyncio.CancelledError) as error:
        stop.set()
        _left_behind.add(running)
        running.add_done_callback(_left_behind.discard)
        running.add_done_callback(lambda done: done.exception())  # nobody is left to look at it
        if isinstance(error, asyncio.CancelledError):
            raise
        raise DeadlineError(f"{what} within {deadline_s:g} s") from error


_left_behind: set[asyncio.Future[Any]] = set()


def _in_thread(work: Callable[[], Result], stop: Callable[[], None]) -> asyncio.Future[Result]:
    """In a thread of its own: hung ones would use up the event loop's, and hold up the end of the process. `stop` is
    called to have it end, if the interpreter does."""
    hung = sum(not one.done() and not one.get_loop().is_closed() for one in _left_behind)
    if hung >= MAX_LEFT_BEHIND:
        raise StorageError(
            f"{hung} threads still wait for the disk that weights go through, after their deadlines: the file server "
            "of argosy.weight_sync.disk_path does not answer"
        )
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def tell(result: Result | None, error: BaseException | None) -> None:
        future.set_exception(error) if error is not None else future.set_result(cast(Result, result))

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again in the loop
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result, failure)

    start_thread(run, "weights-disk", stop)
    return future
