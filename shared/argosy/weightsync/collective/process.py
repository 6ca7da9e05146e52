"""The parent's handle on a worker process: one command at a time, each with a deadline that is kept by killing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from typing import Any

from argosy.types.errors import DeadlineError, UnavailableError

_LOG = logging.getLogger(__name__)
_REAP_S = 10.0
_MAX_IDLE = 2
"""Workers kept for the next transfer (of a process that both sends and receives): starting one costs the import of
torch, some seconds."""


class Worker:
    """A worker process. It ends with this process, and is killed by whatever call goes wrong."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "argosy.weightsync.collective.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    async def call(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Its answer. On any failure, and when the caller is cancelled, the process is killed.

        Raises DeadlineError, and UnavailableError if it died or the command failed.
        """
        answering = asyncio.ensure_future(asyncio.to_thread(self._exchange, command))
        whole = False
        try:
            async with asyncio.timeout(deadline_s):
                line = await asyncio.shield(answering)
            answer = _parsed(line)
            whole = answer is not None and "error" not in answer
        except TimeoutError as error:
            raise DeadlineError(f"a weight transfer did not {command['op']} within {deadline_s:g} s") from error
        finally:
            if not whole:
                self.kill()  # a group that failed may leave threads and sockets behind
        if answer is None:
            code = await asyncio.to_thread(self.reap)
            raise UnavailableError(f"the process of a weight transfer ended with code {code} during {command['op']!r}")
        if "error" in answer:
            raise UnavailableError(f"a weight transfer failed to {command['op']}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End it now, also when it is stopped; `reap` waits for that."""
        self._process.kill()

    def reap(self) -> int | None:
        """Wait for the end of a killed process, and close its pipes; blocks. Its exit code; None if the kernel has not
        ended it within some seconds."""
        try:
            code = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            _LOG.warning("process %d of a weight transfer was killed, but does not end", self.pid)
            return None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was written into it last has no reader any more
                    pipe.close()
        return code

    async def end(self) -> None:
        """Kill it, at once whatever becomes of the caller, and wait for its end."""
        self.kill()
        await asyncio.shield(asyncio.to_thread(self.reap))

    def _exchange(self, command: dict[str, Any]) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except (OSError, ValueError):  # it died before, or was reaped
            return b""


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None for the line of a process that died, before or while it wrote."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


_idle: list[Worker] = []
_lock = threading.Lock()


def borrow() -> Worker:
    """A worker that nobody else uses: one that waits, or a new one."""
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.alive:
                return worker
            worker.reap()
    return Worker()


def give_back(worker: Worker) -> bool:
    """Keep a worker whose last call succeeded for the next transfer. False if there are enough, or it died: end it."""
    with _lock:
        kept = worker.alive and len(_idle) < _MAX_IDLE
        if kept:
            _idle.append(worker)
        return kept


def close_idle() -> None:
    """End the workers that wait; blocks until they have ended."""
    with _lock:
        workers, _idle[:] = list(_idle), []
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.reap()
