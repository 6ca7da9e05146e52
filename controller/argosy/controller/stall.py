"""Stalls: a stage that takes much longer than it did, with the member that it waits for and since when.

A stage is slow when it has lasted for `LEAST_S` and for `TIMES` the longest of its earlier turns. Which member it waits
for follows from the stage; while samples are generated it is the server that has some and has given nothing for the
longest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime

from argosy.controller.vitals import Vitals

log = logging.getLogger(__name__)

LEAST_S = 30.0
TIMES = 5.0
CHECK_S = 1.0
_ROLLOUT_STAGES = ("gen", "testing", "parity", "update_weights")
_WHOSE = {
    "update_actor": "the trainer's", "save_checkpoint": "the trainer's", "update_critic": "the critic's",
    "values": "the critic's", "ref": "the reference's", "reward": "the reward servers'",
}  # fmt: skip
"""Whose work a stage is that isn't the rollout servers'."""
_RESTING = ("start", "paused", "")


class StallWatch:
    """Knows how long the present stage lasts, and whether that is a stall.

    Args:
        vitals: What is seen of members.
        clock: Seconds, for tests.
    """

    def __init__(self, vitals: Vitals, clock: Callable[[], float] = time.monotonic) -> None:
        self._vitals = vitals
        self._clock = clock
        self._stage, self._began = "start", clock()
        self._began_at = time.time()
        self._longest: dict[str, float] = {}
        self._told = False

    @property
    def since(self) -> float:
        """When the present stage began, seconds since 1970."""
        return self._began_at

    @property
    def age_s(self) -> float:
        """Seconds that the present stage has lasted."""
        return self._clock() - self._began

    def enter(self, stage: str) -> None:
        """The loop now waits for this; nothing happens if it did already."""
        if stage == self._stage:
            return
        if self._told:
            log.warning("%s has ended after %.0f s", self._stage, self.age_s)
        self._longest[self._stage] = max(self._longest.get(self._stage, 0.0), self.age_s)
        self._stage, self._began, self._began_at = stage, self._clock(), time.time()
        self._told = False

    def stall(self) -> str:
        """What is blocked, by whom and since when; empty while nothing is."""
        if self._stage in _RESTING or self.age_s < max(LEAST_S, TIMES * self._longest.get(self._stage, 0.0)):
            return ""
        since = datetime.fromtimestamp(self._began_at).strftime("%H:%M:%S")
        return f"the loop has waited for {self._stage} since {since} ({self.age_s:.0f} s){self._blocker()}"

    def _blocker(self) -> str:
        if self._stage in _WHOSE:
            return f": it is {_WHOSE[self._stage]}"
        if self._stage not in _ROLLOUT_STAGES:
            return ""
        working = [(self._vitals.idle_s(name), name) for name, one in self._vitals.all.items() if one.sample_count > 0]
        if not working:
            return ": no rollout server has samples"
        idle_s, member = max(working)
        one = self._vitals.of(member)
        error = f"; its last error was: {one.error}" if one.error else ""
        return f": {member} has {one.sample_count} samples and has given nothing for {idle_s:.0f} s{error}"

    async def run(self, notify: Callable[[], None]) -> None:
        """Warn once of each stall, and tell those who watch, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            found = self.stall()
            if found and not self._told:
                self._told = True
                log.warning("stalled: %s", found)
                notify()
