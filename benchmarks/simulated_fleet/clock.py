"""An event loop on a virtual clock: where nothing is to be done until a timer is due, time jumps there.

Everything else is asyncio's own loop: the order of callbacks, tasks, timeouts. Work in threads takes no virtual time;
while a thread works, the clock stands still. What runs on it must take its times from the loop (`loop.time()`,
`asyncio.sleep`, `asyncio.timeout`); `time.monotonic` goes on showing real time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from array import array
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")

_RESOLUTION_S = 1e-6
_POLL_S = 0.001
"""Real seconds between two looks at threads that work."""
_DEADLOCK_S = 60.0
"""Real seconds without a timer, a thread or an event, after which nothing will ever happen any more."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """See the module. `pauses` has the processor's seconds in each turn of the loop: for at least so long nothing else
    could run. (Real seconds would be those of whatever else the machine does, too.)"""

    def __init__(self) -> None:
        self.now = 0.0
        self.working = 0
        """Calls in threads that are under way."""
        self.pauses = array("f")
        self.waits = False
        """Whether nothing of the loop's own runs right now."""
        super().__init__(_Selector(self))
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """As asyncio's; the clock stands still until it is done."""
        self.working += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: asyncio.Future[Any]) -> None:
        self.working -= 1


class _Selector(selectors.DefaultSelector):
    """Waits in virtual time."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turn_began = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.pauses.append(time.thread_time() - self._turn_began)
        self._loop.waits = True
        try:
            return self._select(timeout)
        finally:
            self._loop.waits = False
            self._turn_began = time.thread_time()

    def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self._loop.working:
            return list(super().select(_POLL_S))
        if timeout is None:
            found = super().select(_DEADLOCK_S)
            if not found:
                raise RuntimeError("nothing will ever happen: no timer, no thread and no event is left to wait for")
            return found
        self._loop.now += timeout
        return []


def run_virtually(work: Callable[[VirtualClockLoop], Coroutine[Any, Any, Result]]) -> Result:
    """What a coroutine on a virtual clock makes, as `asyncio.run` would."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualClockLoop)
        return runner.run(work(loop))
