"""SGLang's server as a child process: started on loopback, ended with the service, whatever ends that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence


class ServerProcess:
    """The child. It has a session of its own, so that its workers end with it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process_id(self) -> int:
        """Of the server; 0 before `start`."""
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives; negative for the signal that ended it."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start it; what it prints goes to the service's own log. Call it on the main thread's event loop: the kernel
        ends the child with the thread that made it."""
        module = "argosy.rollout.engines.sglang.launch"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", module, str(os.getpid())),
            *self._arguments,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
        )

    async def wait(self) -> int:
        """Until it has ended; its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """End it and its workers: asked first, then killed."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            pass  # it is killed now
        self._signal(signal.SIGKILL)  # the workers too, whose parent may be gone already
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
