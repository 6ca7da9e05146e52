"""The receiving end of a collective transfer: joins the offer's group and fills one buffer, in the calling process.

That is a process of weightsync's own (`worker.py`), or a process of an engine that takes weights itself: there the
bytes come where they are needed, and NCCL uses the engine's own GPU.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from argosy.weightsync.memory import KeptMapping
from argosy.weightsync.tensors import ByteArray
from argosy.weightsync.threads import start_thread

_CHECK_THREADS = 1
"""More would take the cores from the transfer itself, and bring it about no sooner."""


class GivenUpError(RuntimeError):
    """Nobody waits for the transfer any more."""


def receive_into(view: ByteArray, command: Mapping[str, Any], stop: threading.Event | None = None) -> list[int]:
    """Fill the memory; the crc32 of each part, which are computed while the next bucket arrives.

    Args:
        view: [N] uint8, writable.
        command: As `argosy.weightsync.transports.collective.receive_command` makes it.
        stop: Set by whoever gives up; GivenUpError then, at the next bucket.

    Raises:
        RuntimeError, OSError: the sender died, refused, or the command's `timeout_s` is over.
    """
    import torch

    from argosy.weightsync.buffers import places_of
    from argosy.weightsync.collective import joining
    from argosy.weightsync.collective.groups import join_store, make_lanes, own_address, receive
    from argosy.weightsync.copying import checksums

    def check_wanted() -> None:
        if stop is not None and stop.is_set():
            raise GivenUpError("the transfer was given up")

    end = time.monotonic() + command["timeout_s"]
    name, rank, endpoint = command["group"], command["rank"], command["endpoint"]
    store = join_store(endpoint, command["timeout_s"])
    address = own_address(endpoint, seconds_left(end))
    gpu = joining.gpu_of(command["device"])
    joining.announce(store, name, rank, joining.Joined(address, command["backend"], joining.identity(gpu)))
    backend = joining.decided_backend(store, name, end, check_wanted)
    lanes = make_lanes(backend, store, name, rank, command["size"], address, seconds_left(end))
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    found: list[int] = []

    def check() -> None:
        places = [place for start, stop_at in command["spans"] for place in places_of("", start, stop_at)]
        done = 0
        while done < len(places):
            here = arrived.get()
            if here < 0:
                return
            first = done
            while done < len(places) and places[done].start + places[done].size <= here:
                done += 1
            found.extend(checksums(view, places[first:done], threads=_CHECK_THREADS) if done > first else ())

    def take(here: int) -> None:
        check_wanted()
        arrived.put(here)

    checking = threading.Thread(target=check, name="weights-check")
    checking.start()
    try:
        memory = torch.from_numpy(view)
        receive(lanes, memory, command["bucket_bytes"], seconds_left(end), device_of(backend, gpu), take)
    except BaseException:
        arrived.put(-1)
        raise
    finally:
        leave(lanes)
        checking.join()
    return found


def leave(groups: list[Any]) -> None:
    """Give up the only references to groups: in a thread, since the end of gloo's own threads takes 10 to 20 ms."""
    start_thread(groups.clear, "weights-leave")


def seconds_left(end: float) -> float:
    """Seconds until `end` (time.monotonic); never 0, which some calls take for no bound."""
    return max(0.1, end - time.monotonic())


def device_of(backend: str, gpu: str) -> str:
    """What buckets lie on."""
    return (gpu or "cuda:0") if backend == "nccl" else "cpu"


class Receipts:
    """Transfers into a process that must go on meanwhile: each in a thread, one at a time.

    The thread of one that was given up ends at its next bucket, or at its deadline; the memory that it writes into is
    nobody else's (`WeightUpdates.receive`).
    """

    def __init__(self) -> None:
        self._mapping = KeptMapping(writable=True)
        self._stop = threading.Event()
        self._answer: dict[str, Any] | None = None
        self._number = 0

    def begin(self, command: Mapping[str, Any]) -> None:
        """Begin to receive as the command says, in place of what is under way."""
        self.give_up()
        self._stop = threading.Event()
        self._number += 1
        run = functools.partial(self._run, self._number, dict(command), self._stop)
        start_thread(run, "weights-receive", self._stop.set)

    def give_up(self) -> None:
        """Receive no more, and keep no memory mapped."""
        self._stop.set()
        self._answer = None
        self._mapping.forget()

    def answer(self) -> dict[str, Any] | None:
        """{"checksums": …} or {"error": …} of what was begun last; None while it is under way."""
        return self._answer

    def _run(self, number: int, command: dict[str, Any], stop: threading.Event) -> None:
        answer: dict[str, Any]
        try:
            view = self._mapping.get(command["path"], command["size_bytes"], command["file_id"])
            answer = {"checksums": receive_into(view, command, stop)}
        except Exception as error:  # noqa: BLE001 - told to the caller, who raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        if number == self._number and not stop.is_set():
            self._answer = answer
