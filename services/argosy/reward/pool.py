"""A fixed number of worker processes behind one bounded queue. Works with or without an event loop, in any thread.

Each has a seat (`seat`). Samples that cost many times what others do leave the fast lane for a slow one (`lanes`,
`quota`), whose workers are started when there is a first such sample.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from argosy.reward.desks import Fast, Slow
from argosy.reward.jobs import Job
from argosy.reward.lanes import Lanes
from argosy.reward.quota import Quotas
from argosy.reward.seat import Seat
from argosy.types.errors import ConfigError, InvalidInputError, OverloadedError, StateError
from argosy.types.records import Outcome

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How many workers, and their bounds."""

    worker_count: int = 2
    timeout_s: float = 10.0
    """Seconds that one call of a scorer may take in its worker, for a sample or for a batch. In the slow lane it is not
    the clock that counts, but the verifier's own limits of processor time."""
    start_timeout_s: float = 60.0
    """Seconds for a worker to start, the custom function's imports included; also for one slow import later on."""
    queue_size: int = 8192
    """Most samples that wait or run at the same time."""
    slow_count: int | None = None
    """Most workers of the slow lane; None is as many as `worker_count`, 0 is no slow lane."""

    def __post_init__(self) -> None:
        for name in ("worker_count", "timeout_s", "start_timeout_s", "queue_size"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"the reward service's {name} must be positive, got {getattr(self, name)}")
        if self.most_slow < 0:
            raise ConfigError(f"the reward service's slow_count can't be negative, got {self.slow_count}")

    @property
    def most_slow(self) -> int:
        """Most workers of the slow lane."""
        return self.worker_count if self.slow_count is None else self.slow_count


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """Scores one message (a sample, or a batch for a function that takes batches) at a time per worker. `close` it."""

    def __init__(
        self,
        options: PoolOptions,
        settings: Mapping[str, Any],
        *,
        least_quota_s: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        """Start all fast workers and wait until each can score. Raises ConfigError with the first worker's own message.

        `least_quota_s`: of a data source, processor seconds that its samples may always take in the fast lane.
        """
        self._options, self._settings = options, settings
        self._lanes = Lanes(
            timeout_s=options.timeout_s,
            worker_count=options.worker_count,
            most_slow=options.queue_size,
            processors=_processors(),
        )
        self._lock = threading.Lock()
        self._unfinished = self._aside = 0
        self._closed = False
        self._slow: list[Seat] = []
        quotas = Quotas(least_quota_s) if options.most_slow else None
        desk = Fast(self._lanes, quotas, timeout_s=options.timeout_s, put_aside=self._put_aside)
        self._fast = [self._seat(f"reward-worker-{index}", desk) for index in range(options.worker_count)]
        for seat in self._fast:
            seat.start()
        try:
            for seat in self._fast:
                seat.started.result()
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """Workers that had to be replaced so far."""
        return sum(seat.restarts for seat in self._seats)

    @property
    def unfinished(self) -> int:
        """Samples that wait or run."""
        return self._unfinished

    @property
    def put_aside(self) -> int:
        """Samples that went to the slow lane so far."""
        return self._aside

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that run now."""
        return tuple(pid for seat in self._seats if (pid := seat.pid) is not None)

    @property
    def traits(self) -> Mapping[str, Any]:
        """What the workers' function says about itself (`calling`); empty for the built-in scorers."""
        return self._fast[0].traits

    def submit(
        self, messages: list[Mapping[str, Any]], *, deadline_s: float
    ) -> list[concurrent.futures.Future[list[Outcome]]]:
        """Queue all messages or none; each has an outcome for each of its samples. OverloadedError if there is no room
        for them now. A future that is cancelled frees its room, wherever its samples are."""
        count = sum(len(message["samples"]) for message in messages)
        if count > self._options.queue_size:
            raise InvalidInputError(f"{count} samples in one call; send at most {self._options.queue_size}")
        with self._lock:
            if self._closed:
                raise StateError("the reward workers are closed")
            if self._unfinished + count > self._options.queue_size:
                waiting = self._unfinished
                raise OverloadedError(f"{waiting} samples are waiting to be scored; there is no room for {count} more")
            self._unfinished += count
        end = time.monotonic() + deadline_s
        jobs = [Job(message, end) for message in messages]
        for job in jobs:
            job.future.add_done_callback(partial(self._finished, len(job.message["samples"])))
        self._lanes.put(jobs)
        return [job.future for job in jobs]

    def close(self) -> None:
        """Kill all workers and wait for them; what still waits is Failed("aborted"). May be called again."""
        with self._lock:
            self._closed = True
        self._lanes.close()
        for seat in self._seats:
            seat.end()
        for seat in self._seats:
            seat.join()

    @property
    def _seats(self) -> list[Seat]:
        return [*self._fast, *self._slow]

    def _seat(self, name: str, desk: Fast | Slow) -> Seat:
        settings = {**self._settings, "background": isinstance(desk, Slow)}
        return Seat(name, settings, desk, start_timeout_s=self._options.start_timeout_s)

    def _finished(self, count: int, _future: concurrent.futures.Future[list[Outcome]]) -> None:
        with self._lock:
            self._unfinished -= count

    def _put_aside(self, job: Job) -> None:
        with self._lock:
            self._aside += 1
        self._lanes.put_aside(job)
        self._staff_slow_lane()

    def _staff_slow_lane(self) -> None:
        """One more worker for it if all are busy and jobs wait. One after the other: a start takes a second or two."""
        with self._lock:
            for seat in self._slow:
                if seat.is_over and not self._closed:
                    _log.warning("a worker of the slow lane couldn't start: %s", seat.started.exception())
            self._slow = [seat for seat in self._slow if not seat.is_over]
            enough = self._closed or len(self._slow) >= self._options.most_slow or not self._lanes.slow_waiting
            if enough or not all(seat.started.done() and seat.busy for seat in self._slow):
                return
            seat = self._seat(f"reward-slow-worker-{len(self._slow)}", Slow(self._lanes, self._staff_slow_lane))
            self._slow = [*self._slow, seat]
            seat.start()
