"""How many samples a server gets at a time: as many as it has slots for and a few more, fewer while it turns some away.

Additive increase, multiplicative decrease, as of congestion control (Chiu and Jain, 1989, "Analysis of the Increase and
Decrease Algorithms for Congestion Avoidance in Computer Networks"): a server whose memory is full of long answers has
fewer places than slots, and how many is known only from what it refuses.
"""

from __future__ import annotations

LOOKAHEAD = 8
"""One sample more than slots for every so many slots waits at the server, so that a slot that gets free is filled in
the server's very next step."""
DECREASE = 0.75
"""What is left of a window when a sample is turned away."""


class Window:
    """The most samples of one server.

    >>> window = Window()
    >>> window.limit(16)
    19
    >>> window.refused(had=12)
    >>> window.limit(16)
    9
    >>> for _ in range(10):
    ...     window.made()
    >>> window.limit(16)
    10
    """

    def __init__(self) -> None:
        self._most: float | None = None
        """None: nothing was ever turned away, or the window has grown beyond the slots again."""

    def limit(self, slots: int) -> int:
        """The most samples of a server with so many slots, at least 1."""
        full = slots + 1 + slots // LOOKAHEAD
        if self._most is not None and self._most >= full:
            self._most = None
        return full if self._most is None else max(int(self._most), 1)

    def refused(self, had: int) -> None:
        """The server has turned a sample away while it had so many. One that was sent before the window was narrowed
        says nothing new."""
        if self._most is not None and had >= self._most:
            return
        most = had if self._most is None else min(had, self._most)
        self._most = max(DECREASE * most, 1.0)

    def made(self) -> None:
        """It has finished one: a whole window of these widens the window by one."""
        if self._most is not None:
            self._most += 1 / self._most
