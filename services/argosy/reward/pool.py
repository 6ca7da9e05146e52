"""A fixed number of worker processes behind one bounded queue. Works with or without an event loop, in any thread.

One thread per worker owns its process: it starts it, talks to it, kills it when a sample overruns, and starts the next
one at once, so that a poisonous sample costs its own deadline and nothing else (case A11).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from argosy.reward.messages import MOST_REQUEST_BYTES, encode, outcome_from_json
from argosy.reward.process import WorkerCrashedError, WorkerProcess, WorkerStartError, WorkerTimeoutError
from argosy.types.errors import ConfigError, InternalError, InvalidInputError, OverloadedError, StateError
from argosy.types.records import Failed, Outcome

_log = logging.getLogger(__name__)
_NAP_AFTER_FAILED_START_S = 0.5


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How many workers, and their bounds."""

    worker_count: int = 2
    timeout_s: float = 10.0
    """Seconds that one call of a scorer may take in its worker, for a sample or for a batch."""
    start_timeout_s: float = 60.0
    """Seconds for a worker to start, the custom function's imports included; also for one slow import later on."""
    queue_size: int = 8192
    """Most samples that wait or run at the same time."""

    def __post_init__(self) -> None:
        for name in ("worker_count", "timeout_s", "start_timeout_s", "queue_size"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"the reward service's {name} must be positive, got {getattr(self, name)}")


@dataclass(slots=True)
class _Job:
    message: Mapping[str, Any]
    end: float
    future: concurrent.futures.Future[list[Outcome]]

    def failed(self, reason: str, message: str) -> list[Outcome]:
        """The same for all its samples."""
        return [Failed(reason, message)] * len(self.message["samples"])


class WorkerPool:
    """Scores one message (a sample, or a batch for a function that takes batches) at a time per worker. `close` it."""

    def __init__(self, options: PoolOptions, settings: Mapping[str, Any]) -> None:
        """Start all workers and wait until each can score. Raises ConfigError with the first worker's own message."""
        self._options = options
        self._settings = settings
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._restarts = 0
        self._closed = False
        self._traits: Mapping[str, Any] = {}
        self._processes: list[WorkerProcess | None] = [None] * options.worker_count
        started: list[concurrent.futures.Future[None]] = [concurrent.futures.Future() for _ in self._processes]
        self._threads = [
            threading.Thread(target=self._serve, args=(index, future), name=f"reward-worker-{index}", daemon=True)
            for index, future in enumerate(started)
        ]
        for thread in self._threads:
            thread.start()
        try:
            for future in started:
                future.result()
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """Workers that had to be replaced so far."""
        return self._restarts

    @property
    def unfinished(self) -> int:
        """Samples that wait or run."""
        return self._unfinished

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that run now."""
        return tuple(process.pid for process in self._processes if process is not None and process.is_alive)

    @property
    def traits(self) -> Mapping[str, Any]:
        """What the workers' function says about itself (`calling`); empty for the built-in scorers."""
        return self._traits

    def submit(
        self, messages: list[Mapping[str, Any]], *, deadline_s: float
    ) -> list[concurrent.futures.Future[list[Outcome]]]:
        """Queue all messages or none; each has an outcome for each of its samples. OverloadedError if there is no room
        for them now."""
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
            jobs = [_Job(message, end, concurrent.futures.Future()) for message in messages]
            for job in jobs:
                job.future.add_done_callback(partial(self._finished, len(job.message["samples"])))
                self._jobs.put(job)
        return [job.future for job in jobs]

    def close(self) -> None:
        """Kill all workers and wait for them; what still waits is Failed("aborted"). May be called again."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            for _ in self._threads:
                self._jobs.put(None)
            for process in self._processes:
                if process is not None:
                    process.kill()
        for thread in self._threads:
            thread.join()
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_result(job.failed("aborted", "the reward workers were closed"))

    def _finished(self, count: int, _future: concurrent.futures.Future[list[Outcome]]) -> None:
        with self._lock:
            self._unfinished -= count

    def _serve(self, index: int, started: concurrent.futures.Future[None]) -> None:
        """A worker thread's whole life."""
        try:
            self._start(index)
            self._ready(index)
        except BaseException as error:  # noqa: BLE001 - whoever makes the pool waits for it
            self._stop(index)
            started.set_exception(error)
            return
        started.set_result(None)
        while not self._closed:
            job = self._jobs.get()
            if job is None:
                break
            if job.future.set_running_or_notify_cancel():
                self._answer(index, job)
        self._stop(index)

    def _answer(self, index: int, job: _Job) -> None:
        try:
            job.future.set_result(self._run(index, job))
        except Exception as error:  # noqa: BLE001 - a defect of ours: whoever waits for the sample learns of it
            job.future.set_exception(error)
            try:
                self._stop(index)  # who knows what it still has to say; `_ready` starts the next one
            except OSError as problem:
                _log.warning("a reward worker couldn't be ended: %s", problem)

    def _run(self, index: int, job: _Job) -> list[Outcome]:
        if time.monotonic() >= job.end:
            return job.failed("timeout", "the call's deadline passed before a worker was free")
        try:
            message = encode(job.message)
        except (TypeError, ValueError, RecursionError) as error:
            return job.failed("bad_request", f"the sample's data can't be written as JSON: {error}")
        if len(message) > MOST_REQUEST_BYTES:
            what = "sample takes" if len(job.message["samples"]) == 1 else "batch takes"
            return job.failed("too_large", f"the {what} {len(message)} bytes; at most {MOST_REQUEST_BYTES} are scored")
        try:
            process = self._ready(index)
        except (ConfigError, InternalError) as error:
            self._stop(index)
            time.sleep(_NAP_AFTER_FAILED_START_S)  # so that a machine that can't start processes isn't spun on
            return job.failed("crashed", error.message)
        allowed_s = max(0.0, min(self._options.timeout_s, job.end - time.monotonic()))
        try:
            reply = process.exchange(message, timeout_s=allowed_s)
            if reply["id"] != job.message["id"]:
                raise WorkerCrashedError(f"it answered {reply['id']!r} instead of {job.message['id']!r}")
            outcomes = [outcome_from_json(outcome) for outcome in reply["outcomes"]]
            if len(outcomes) != len(job.message["samples"]):
                raise ValueError(f"{len(outcomes)} outcomes for {len(job.message['samples'])} samples")
            return outcomes
        except WorkerTimeoutError:
            self._replace(index)
            source = job.message["samples"][0]["data_source"]
            return job.failed("timeout", f"the scorer of {source!r} took longer than {allowed_s:.3g} s and was killed")
        except WorkerCrashedError as error:
            self._replace(index)
            return job.failed("aborted" if self._closed else "crashed", f"the worker {error}")
        except (KeyError, TypeError, ValueError) as error:
            self._replace(index)
            return job.failed("bad_return", f"the worker's reply makes no sense: {error!r}")

    def _ready(self, index: int) -> WorkerProcess:
        """The worker, waited for; one that died while idle is replaced without blaming a sample."""
        process = self._processes[index]
        if process is None or not process.is_alive:
            if process is not None:
                self._restarts += 1
            process = self._start(index)
        try:
            process.wait_ready()
        except WorkerStartError as error:
            raise ConfigError(str(error)) from error
        except WorkerTimeoutError:
            raise InternalError(f"a reward worker didn't start in {self._options.start_timeout_s:g} s") from None
        except WorkerCrashedError as error:
            raise InternalError(f"a reward worker couldn't start: it {error}; its output is in the log") from error
        self._traits = process.traits
        return process

    def _start(self, index: int) -> WorkerProcess:
        self._stop(index)
        try:
            process = WorkerProcess(self._settings, start_timeout_s=self._options.start_timeout_s)
        except OSError as error:
            raise InternalError(f"the system can't start a reward worker: {error}") from error
        except (WorkerCrashedError, WorkerTimeoutError) as error:
            raise InternalError(f"a reward worker ended right after its start: {error}; see the log") from error
        with self._lock:
            self._processes[index] = process
            if self._closed:
                process.kill()
        return process

    def _replace(self, index: int) -> None:
        """Kill the worker and start the next one without waiting for it."""
        self._restarts += 1
        self._stop(index)
        if not self._closed:
            with contextlib.suppress(InternalError):  # `_ready` tries again, and reports it
                self._start(index)

    def _stop(self, index: int) -> None:
        with self._lock:
            process, self._processes[index] = self._processes[index], None
        if process is not None:
            process.close()
