"""One supervised child process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from argosy.controller.launch import child as child_module
from argosy.controller.launch.errors import ChildDiedError
from argosy.controller.launch.logs import TAIL_LINES, LogPump, RotatingLog
from argosy.controller.launch.watchdog import TOKEN_VARIABLE, kill_group

_LAST_OUTPUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run."""

    name: str
    """The member id; names the log file too."""
    argv: Sequence[str]
    stage: int = 0
    """Children of a higher stage are drained before those of a lower one; within a stage, together."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the launcher's own environment. May hold secrets: not for logs."""
    group: str = ""
    """Children of one group can stand in for each other (`Supervisor.allow_losses`); "" is no group."""
    is_awaited: bool = False
    """Whether the run's work waits by itself, and loses nothing, until it is there again after its death."""


class ChildProcess:
    """A child in a session of its own: a Ctrl-C of the terminal does not reach it, only the launcher's drain does."""

    def __init__(self, spec: ChildSpec, process: asyncio.subprocess.Process, pump: LogPump, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self._process = process
        self._pump = pump

    @classmethod
    async def start(cls, spec: ChildSpec, *, log_dir: Path, token: str) -> ChildProcess:
        """Start it; its output goes to `log_dir/<name>.log`."""
        log_path = log_dir / f"{spec.name}.log"
        log = RotatingLog(log_path)
        read_fd, write_fd = os.pipe()
        # By path and isolated, so that it starts in 20 ms and imports nothing of ours.
        wrapper = [sys.executable, "-I", "-S", str(child_module.__file__), str(os.getpid()), "--"]
        try:
            process = await asyncio.create_subprocess_exec(
                *wrapper,
                *spec.argv,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.env, TOKEN_VARIABLE: token},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_fd,
                stderr=write_fd,
                start_new_session=True,
            )
        except BaseException:
            os.close(read_fd)
            log.close()
            raise
        finally:
            os.close(write_fd)
        return cls(spec, process, LogPump(read_fd, log), log_path)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session and process group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    def tail(self, count: int = TAIL_LINES) -> list[str]:
        """The last lines of its output."""
        return self._pump.tail(count)

    async def wait(self) -> int:
        """Wait for its end."""
        return await self._process.wait()

    async def death(self) -> ChildDiedError:
        """Why it ended, once it has: ends what it left in its group, and reads the rest of its output first."""
        returncode = await self._process.wait()
        kill_group(self.pid)  # now, while the group's number can't have been given to anybody else
        await asyncio.to_thread(self._pump.join, _LAST_OUTPUT_S)
        return ChildDiedError(self.spec.name, returncode, self.log_path, self.tail())

    async def stop(self, grace_s: float) -> None:
        """SIGTERM to the process, then SIGKILL to its whole group after `grace_s`."""
        if self.returncode is not None:
            return
        try:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(self._process.wait(), grace_s)
        except ProcessLookupError:
            pass  # it has just ended
        except TimeoutError:
            kill_group(self.pid)
        await self._process.wait()

    def kill(self) -> None:
        """SIGKILL to its whole group, at once."""
        if self.returncode is None:
            kill_group(self.pid)
