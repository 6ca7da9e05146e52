"""Daemon threads that the end of the interpreter waits for, a moment at most.

A daemon thread that is in native code of torch while the interpreter ends, or frees a tensor then, takes the process
down by SIGABRT. One that is no daemon would hold the end up for as long as a dead file server does not answer.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

_END_S = 2.0
_running: dict[threading.Thread, Callable[[], object]] = {}


def start_thread(work: Callable[[], object], name: str, stop: Callable[[], object] = lambda: None) -> threading.Thread:
    """Run `work` in a thread; `stop` has it end soon, and is called if the interpreter ends before it does."""

    def run() -> None:
        try:
            work()
        finally:
            _running.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _running[thread] = stop
    thread.start()
    return thread


def end_threads(timeout_s: float = _END_S) -> None:
    """Have all of them end, and wait for that, not longer than this. What is left then hangs in the system."""
    end = time.monotonic() + timeout_s
    while _running and time.monotonic() < end:  # what ends may start another: a transfer leaves its groups in one
        for thread, stop in list(_running.items()):
            stop()
            thread.join(max(0.0, end - time.monotonic()))


atexit.register(end_threads)
