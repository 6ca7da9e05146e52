"""Samples leave a server that falls behind the others, and one that stands still is used no more until it moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from argosy.controller.stages.fleet import RolloutFleet
from argosy.controller.stages.pace import LOOK_S, Pace
from argosy.types.errors import UnavailableError

log = logging.getLogger(__name__)

Move = Callable[[str], int]
"""Let samples of a server go on elsewhere, as far as there is room; how many did."""
Stalled = Callable[[str, Exception], None]
"""Use a server no more until it answers and moves."""


class SlowServers:
    """Compares the servers' pace while samples run.

    Args:
        fleet: Whose servers.
        is_held: Whether a server is told to hold still at the moment.
        move: What is done about one that is slow.
    """

    def __init__(self, fleet: RolloutFleet, is_held: Callable[[str], bool], move: Move) -> None:
        self._fleet = fleet
        self._is_held = is_held
        self._move = move
        self._pace: Pace | None = None
        self._running = 0
        self._looking: asyncio.Task[None] | None = None
        self.stalled: Stalled | None = None
        """What is done about one that stands still; None: nothing more than about a slow one."""

    def begin(self, member: str) -> None:
        """A server gets a sample."""
        now = asyncio.get_running_loop().time()
        self._running += 1
        if self._pace is None:
            self._pace = Pace(now)
        self._pace.begin(member, now, self._fleet.slots(member))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking(self._pace), name="look for slow rollout servers")

    def made(self, member: str, token_count: int) -> None:
        """It has made so many tokens more of a sample."""
        if self._pace is not None:
            self._pace.made(member, token_count)

    def end(self, member: str) -> None:
        """It has one less."""
        self._running -= 1
        if self._pace is not None:
            self._pace.end(member, asyncio.get_running_loop().time(), self._fleet.slots(member))

    def speed(self, member: str) -> float:
        """Relative to the others; at most 1."""
        return 1.0 if self._pace is None else self._pace.speed(member)

    def forget(self, member: str) -> None:
        """It has left."""
        if self._pace is not None:
            self._pace.forget(member)

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _keep_looking(self, pace: Pace) -> None:
        while self._running:
            await asyncio.sleep(LOOK_S)
            members = self._fleet.in_use()
            held = {member for member in members if self._is_held(member)}
            slots = {member: self._fleet.slots(member) for member in members}
            slow, still = pace.compare(asyncio.get_running_loop().time(), slots, held)
            for member in slow:
                self._see_to(member, stands_still=member in still)

    def _see_to(self, member: str, *, stands_still: bool) -> None:
        if stands_still and self.stalled is not None:
            self.stalled(member, UnavailableError(f"{member} has made no token while the other servers went on"))
        elif count := self._move(member):
            log.warning("%s is much slower than the other rollout servers: %d samples go on elsewhere", member, count)
