"""How busy a server is: rates over the last seconds, and whether its engine still moves."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from argosy.rollout.engines.base import Engine

WINDOW_S = 10.0
"""Rates are over the last so many seconds."""
_MAX_POINTS = 256


class Rate:
    """Growth per second of a counter that is looked at now and then.

    >>> rate = Rate()
    >>> rate.note(0, now=0.0), rate.note(30, now=2.0)
    (0.0, 15.0)
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=_MAX_POINTS)

    def note(self, count: float, *, now: float | None = None) -> float:
        """Take the counter's value in; the growth per second over the window. 0 at the first look."""
        now = time.monotonic() if now is None else now
        # Close neighbours would fill the deque with one moment.
        if len(self._points) > 1 and now - self._points[-2][0] < WINDOW_S / _MAX_POINTS:
            self._points.pop()
        self._points.append((now, count))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()
        (then, before) = self._points[0]
        return (count - before) / (now - then) if now > then else 0.0


class Pulse:
    """Whether an engine still moves: its loop takes its turns, and samples that run get tokens.

    Looked at by whoever asks for the status; it needs no task of its own between two looks.

    Args:
        engine: What is watched.
        timeout_s: How long it may stand still. One step may take long: the prefill of long prompts on a slow machine.
    """

    def __init__(self, engine: Engine, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._clock = clock
        self._ping: asyncio.Future[int] | None = None
        self._pinged = 0.0
        self._tokens = -1
        self._moved = clock()

    def stuck_s(self, *, idle: bool) -> float:
        """Seconds that the engine has stood still beyond its bound; 0 while all is well.

        Args:
            idle: Nothing is to be sampled (nothing runs, or it is paused), so that no tokens are expected.
        """
        now = self._clock()
        tokens = self._engine.counts().generated_token_count
        if idle or tokens != self._tokens:
            self._tokens, self._moved = tokens, now
        if self._ping is None or self._ping.done():
            self._pinged = now
            self._ping = asyncio.ensure_future(self._engine.abort(set()))
            self._ping.add_done_callback(_seen)
        silent_s = max(now - self._moved, now - self._pinged)
        return silent_s if silent_s > self._timeout_s else 0.0

    def close(self) -> None:
        """Ask no more."""
        if self._ping is not None:
            self._ping.cancel()


def _seen(ping: asyncio.Future[int]) -> None:
    if not ping.cancelled():
        ping.exception()  # an engine that can't answer tells why by its `failed`
