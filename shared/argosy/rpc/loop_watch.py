"""Finds out that a process's event loop stands still, which the loop itself can tell nobody (case F10).

Leases are renewed, and HTTP/2 pings answered, by other threads: to the fleet such a server looks well, and calls to it
wait for their deadlines. So a thread looks on, and ends the process: its callers learn that at once, and go elsewhere.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_LOOKS = 10
"""In the time that the loop may take for one turn."""


class LoopWatch:
    """A thread that asks the running loop for a turn again and again.

    It counts its own looks and not the clock: a process that was stopped, or a machine that slept, has not hung.

    Args:
        timeout_s: Seconds without a turn after which the loop counts as blocked.
        on_blocked: What happens then, in the thread; by default every thread's stack goes to stderr, and the process
            ends with exit code 1.
    """

    def __init__(self, timeout_s: float, on_blocked: Callable[[float], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._on_blocked = on_blocked or _end
        self._turned = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def _run(self) -> None:
        self._turned.set()
        missed = 0
        while not self._stop.wait(self._timeout_s / _LOOKS):
            missed += 1
            if self._turned.is_set():
                missed = 0
                self._turned.clear()
                try:
                    self._loop.call_soon_threadsafe(self._turned.set)
                except RuntimeError:  # the loop is closed: there is nothing to look at any more
                    return
            elif missed >= _LOOKS:
                self._on_blocked(self._timeout_s)
                return


def _end(timeout_s: float) -> None:
    _LOG.critical(
        "the event loop has not had a turn for %g s: this process ends; what its threads do is below", timeout_s
    )
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    sys.stderr.flush()
    os._exit(1)
