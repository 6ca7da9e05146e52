"""Ctrl-C and its relatives: the first asks for an orderly end, the second kills at once (case H6)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILL_HOOKS: list[Callable[[], None]] = []
"""What the second signal calls before the process leaves without further ado; each entered LocalFleet is here."""


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP set `requested` instead of raising KeyboardInterrupt anywhere.

        with StopSignals() as signals:
            signals.cancel(asyncio.current_task())     # the first signal cancels this task
            async with LocalFleet(cfg, run_dir) as fleet:   # the second kills every entered fleet, and leaves
                ...
        return signals.exit_code                       # 130 for Ctrl-C, as shells expect; 0 if there was none

    Enter it in the main thread, inside the event loop.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """Set by the first signal."""
        self.number: signal.Signals | None = None
        """Which signal came first."""
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        # Not loop.add_signal_handler: the second signal must work even when the loop is stuck in a long call.
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # After a signal the process is on its way out with its own exit code: more of them change nothing.
            signal.signal(number, handler if self.number is None else signal.SIG_IGN)

    @property
    def exit_code(self) -> int:
        """128 + the signal's number; 0 when there was none."""
        return 0 if self.number is None else 128 + self.number

    def cancel(self, task: asyncio.Task[object] | None) -> None:
        """Cancel `task` at the first signal; None takes that back (when the task looks at `requested` itself)."""
        self._task = task

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = signal.Signals(number)
            self._loop.call_soon_threadsafe(self._request)
            return
        try:
            for kill in KILL_HOOKS:
                kill()
        finally:
            os._exit(128 + number)

    def _request(self) -> None:
        self.requested.set()
        if self._task is not None:
            self._task.cancel()
