"""The parent's handle on a worker process: one command at a time, each with a deadline that is kept by killing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from typing import Any

from argosy.types.errors import DeadlineError, UnavailableError

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
        try:
            async with asyncio.timeout(deadline_s):
                line = await asyncio.shield(answering)
        except (TimeoutError, asyncio.CancelledError) as error:
            self.kill()
            await asyncio.wait({answering})  # ends at once: the pipe is closed
            answering.exception()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise DeadlineError(f"a weight transfer did not {command['op']} within {deadline_s:g} s") from error
        if not line:
            code = self.kill()
            raise UnavailableError(f"the process of a weight transfer ended with code {code} during {command['op']!r}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.kill()  # a group that failed may leave threads and sockets behind
            raise UnavailableError(f"a weight transfer failed to {command['op']}: {answer['error']}")
        return answer

    def kill(self) -> int:
        """End it now, also when it is stopped; returns its exit code."""
        self._process.kill()
        return self._process.wait()

    def close_pipes(self) -> None:
        """After its end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _exchange(self, command: dict[str, Any]) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except OSError:  # it died before
            return b""


_idle: list[Worker] = []
_lock = threading.Lock()


def borrow() -> Worker:
    """A worker that nobody else uses: one that waits, or a new one."""
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.alive:
                return worker
            worker.close_pipes()
    return Worker()


def give_back(worker: Worker) -> None:
    """Keep a worker whose last call succeeded for the next transfer; end it if there is one already, or if it died."""
    with _lock:
        if worker.alive and len(_idle) < _MAX_IDLE:
            _idle.append(worker)
            return
    worker.kill()
    worker.close_pipes()


def close_idle() -> None:
    """End the workers that wait."""
    with _lock:
        workers, _idle[:] = list(_idle), []
    for worker in workers:
        worker.kill()
        worker.close_pipes()
