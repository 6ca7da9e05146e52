"""One worker's seat in the pool: the thread that owns its process.

It starts the process, talks to it, kills it when a sample overruns, and starts the next one at once, so that a
poisonous sample costs its own deadline and nothing else (case A11).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from argosy.reward.jobs import Job
from argosy.reward.messages import MOST_REQUEST_BYTES, encode, outcome_from_json, with_limits
from argosy.reward.process import WorkerCrashedError, WorkerProcess, WorkerStartError, WorkerTimeoutError
from argosy.types.errors import ConfigError, InternalError
from argosy.types.records import Outcome

_log = logging.getLogger(__name__)
_NAP_AFTER_FAILED_START_S = 0.5


class Desk(Protocol):
    """What a seat asks of its pool."""

    def take(self) -> Job | None:
        """The next job, waited for; None when there will be no more."""
        ...

    def allowed_s(self, job: Job) -> float:
        """Seconds on the clock that it may take here from now on."""
        ...

    def quota_s(self, job: Job) -> float | None:
        """Processor seconds after which it is put aside."""
        ...

    def judged(self, job: Job, used_s: float) -> None:
        """It took so many processor seconds; `math.inf` if it exceeded its quota."""
        ...

    def overran(self, job: Job, message: str) -> list[Outcome] | None:
        """It took more than `allowed_s`. Its outcomes, or None if it is somebody else's now; as for `unserved`."""
        ...

    def unserved(self, job: Job, message: str) -> list[Outcome] | None:
        """No worker can be started for it."""
        ...

    def put_aside(self, job: Job) -> None:
        """It exceeds its quota: others judge it."""
        ...


class Seat:
    """A worker process and its thread. `start` it, then `close` it."""

    def __init__(self, name: str, settings: Mapping[str, Any], desk: Desk, *, start_timeout_s: float) -> None:
        self.restarts = 0
        """Processes that had to be replaced so far."""
        self.busy = True
        """Whether it has a job, or isn't ready for one yet."""
        self.traits: Mapping[str, Any] = {}
        """What its process said about its function."""
        self._settings, self._desk, self._start_timeout_s = settings, desk, start_timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._process: WorkerProcess | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.started: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when it can score; its exception says why it never will."""

    def start(self) -> None:
        """Start the process, without waiting for it."""
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        process = self._process
        return process.pid if process is not None and process.is_alive else None

    @property
    def is_over(self) -> bool:
        """Whether its thread ended: it couldn't start, or it was closed."""
        return self.started.done() and not self._thread.is_alive()

    def end(self) -> None:
        """Kill the process. The thread ends when its desk has no more jobs; `join` waits for that."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()

    def join(self) -> None:
        """Wait for the thread."""
        self._thread.join()

    def _serve(self) -> None:
        """The thread's whole life."""
        try:
            self._start()
            self._ready()
        except BaseException as error:  # noqa: BLE001 - whoever waits for `started` gets it
            self._stop()
            self.started.set_exception(error)
            return
        self.started.set_result(None)
        while not self._closed:
            self.busy = False
            job = self._desk.take()
            if job is None:
                break
            self.busy = True
            if not job.future.done():
                self._answer(job)
        self._stop()

    def _answer(self, job: Job) -> None:
        try:
            outcomes = self._run(job)
        except Exception as error:  # noqa: BLE001 - a defect of ours: whoever waits for the sample learns of it
            job.finish(error)
            try:
                self._stop()  # who knows what it still has to say; `_ready` starts the next one
            except OSError as problem:
                _log.warning("a reward worker couldn't be ended: %s", problem)
            return
        if outcomes is not None:
            job.finish(outcomes)

    def _run(self, job: Job) -> list[Outcome] | None:
        """Its outcomes; None if somebody else judges it."""
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
            process = self._ready()
        except (ConfigError, InternalError) as error:
            self._stop()
            time.sleep(_NAP_AFTER_FAILED_START_S)  # so that a machine that can't start processes isn't spun on
            return self._desk.unserved(job, error.message)
        allowed_s = max(0.0, self._desk.allowed_s(job))
        message = with_limits(message, quota_s=self._desk.quota_s(job), allowed_s=allowed_s)
        return self._ask(process, job, message, allowed_s)

    def _ask(self, process: WorkerProcess, job: Job, message: bytes, allowed_s: float) -> list[Outcome] | None:
        try:
            reply = process.exchange(message, timeout_s=allowed_s)
            if reply["id"] != job.message["id"]:
                raise WorkerCrashedError(f"it answered {reply['id']!r} instead of {job.message['id']!r}")
            if reply.get("put_aside") is True:
                self._desk.judged(job, math.inf)
                self._desk.put_aside(job)
                return None
            outcomes = [outcome_from_json(outcome) for outcome in reply["outcomes"]]
            if len(outcomes) != len(job.message["samples"]):
                raise ValueError(f"{len(outcomes)} outcomes for {len(job.message['samples'])} samples")
            self._desk.judged(job, float(reply["used_s"]))
            return outcomes
        except WorkerTimeoutError:
            self._replace()
            problem = f"the scorer of {job.source!r} took longer than {allowed_s:.3g} s and was killed"
            return self._desk.overran(job, problem)
        except WorkerCrashedError as error:
            self._replace()
            return job.failed("aborted" if self._closed else "crashed", f"the worker {error}")
        except (KeyError, TypeError, ValueError) as error:
            self._replace()
            return job.failed("bad_return", f"the worker's reply makes no sense: {error!r}")

    def _ready(self) -> WorkerProcess:
        """The worker, waited for; one that died while idle is replaced without blaming a sample."""
        process = self._process
        if process is None or not process.is_alive:
            if process is not None:
                self.restarts += 1
            process = self._start()
        try:
            process.wait_ready()
        except WorkerStartError as error:
            raise ConfigError(str(error)) from error
        except WorkerTimeoutError:
            raise InternalError(f"a reward worker didn't start in {self._start_timeout_s:g} s") from None
        except WorkerCrashedError as error:
            raise InternalError(f"a reward worker couldn't start: it {error}; its output is in the log") from error
        self.traits = process.traits
        return process

    def _start(self) -> WorkerProcess:
        self._stop()
        try:
            process = WorkerProcess(self._settings, start_timeout_s=self._start_timeout_s)
        except OSError as error:
            raise InternalError(f"the system can't start a reward worker: {error}") from error
        except (WorkerCrashedError, WorkerTimeoutError) as error:
            raise InternalError(f"a reward worker ended right after its start: {error}; see the log") from error
        with self._lock:
            self._process = process
            if self._closed:
                process.kill()
        return process

    def _replace(self) -> None:
        """Kill the worker and start the next one without waiting for it."""
        self.restarts += 1
        self._stop()
        if not self._closed:
            with contextlib.suppress(InternalError):  # `_ready` tries again, and reports it
                self._start()

    def _stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()
