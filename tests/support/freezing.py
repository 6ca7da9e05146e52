"""Stop processes, and know that they stand still."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

STOPPED = frozenset("Ttzx")
"""States of a thread in /proc that runs nothing: stopped, traced, or over."""


def freeze(pid: int, *, within_s: float = 30.0) -> None:
    """SIGSTOP, and wait until no thread of the process runs any more.

    The signal alone is a wish: on a busy machine a thread may go on for a moment, and answer what a test asks of a
    process that it takes for frozen.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + within_s
    while any(state.lower() not in STOPPED for state in _states(pid)):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.005)


def _states(pid: int) -> list[str]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found.append(thread.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
    return found
