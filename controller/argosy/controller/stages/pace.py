"""Which rollout servers fall behind: by the tokens that a sample gets in a second, not by how long its answer is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

LOOK_S = 2.5
"""Between two looks."""
WINDOW_S = 5.0
"""The shortest time over which servers are compared."""
LONGEST_WINDOW_S = 60.0
"""After which a comparison begins anew for which too little has come."""
BUSY = 0.8
"""Part of a window in which a server must have had samples to be compared."""
SLOW = 0.25
"""Of the others' median: with less for each sample, and less for all of them together, a server's samples are better
off elsewhere."""
LEAST_RUNS = 2
"""Runs of tokens that a sample of the others must have got, or the window is too short to tell."""
LEAST_SPEED = 0.05
"""A server never counts for less, so that it gets a sample now and then by which it can show that it is well again."""
MANY = 16
"""Servers from which on one more or less does not change a median."""
STALLED_WINDOWS = 2
"""Windows in a row without any token from a server, while the others go on, after which it stands still."""


@dataclass(slots=True)
class _Seen:
    """Of one server in a window."""

    samples: int = 0
    """That it has now."""
    changed: float = 0.0
    """When that last changed."""
    sample_s: float = 0.0
    """Seconds, times the samples that ran in them."""
    busy_s: float = 0.0
    tokens: int = 0
    empty_windows: int = 0
    """In a row, until the last one."""

    def pass_time(self, now: float, slots: int) -> None:
        passed, self.changed = now - self.changed, now
        if self.samples:
            self.busy_s += passed
            self.sample_s += passed * min(self.samples, slots)  # those beyond the slots wait at the server

    def begin_window(self) -> None:
        self.sample_s, self.busy_s, self.tokens = 0.0, 0.0, 0


class Pace:
    """What each server makes of its samples, compared over windows that are long enough to tell. Times are seconds of
    the event loop's clock."""

    def __init__(self, now: float) -> None:
        self._servers: dict[str, _Seen] = {}
        self._speeds: dict[str, float] = {}
        self._began = now
        self._longest_run = 1

    def begin(self, member: str, now: float, slots: int) -> None:
        """A server gets a sample."""
        seen = self._servers.setdefault(member, _Seen(changed=now))
        seen.pass_time(now, slots)
        seen.samples += 1

    def end(self, member: str, now: float, slots: int) -> None:
        """It has one less."""
        seen = self._servers[member]
        seen.pass_time(now, slots)
        seen.samples -= 1

    def made(self, member: str, token_count: int) -> None:
        """It has made so many tokens more of a sample."""
        self._servers[member].tokens += token_count
        self._longest_run = max(self._longest_run, token_count)

    def forget(self, member: str) -> None:
        """Another server will come under this id. What the old one still has is counted to its end."""
        self._speeds.pop(member, None)

    def speed(self, member: str) -> float:
        """Relative to the others, LEAST_SPEED to 1."""
        return self._speeds.get(member, 1.0)

    def compare(self, now: float, slots: Mapping[str, int], besides: Collection[str]) -> tuple[list[str], list[str]]:
        """(those that fell behind, those of them that stand still), if a window ends now. `besides`: Servers that are
        told to hold still at the moment, of which nothing follows. `slots`: of the others."""
        for member, seen in self._servers.items():
            seen.pass_time(now, slots.get(member, 1))
        window_s = now - self._began
        if window_s < WINDOW_S:
            return [], []
        compared = {
            member: seen
            for member, seen in self._servers.items()
            if member not in besides and member in slots and seen.samples and seen.busy_s >= BUSY * window_s
        }
        usual = _usual({member: seen.tokens / seen.sample_s for member, seen in compared.items()})
        tells = [member for member, rate in usual.items() if rate * window_s >= LEAST_RUNS * self._longest_run]
        if not tells and window_s < LONGEST_WINDOW_S and usual:
            return [], []
        # A server with many samples gives each of them less, and all of them more.
        together = _usual({member: seen.tokens / seen.busy_s for member, seen in compared.items()})
        relative = {
            member: max(seen.tokens / seen.sample_s / usual[member], seen.tokens / seen.busy_s / together[member])
            for member in tells
            for seen in (compared[member],)
        }
        self._learn(relative)
        slow = [member for member in tells if relative[member] < SLOW]
        for member, seen in self._servers.items():
            seen.empty_windows = seen.empty_windows + 1 if member in relative and not seen.tokens else 0
            seen.begin_window()
        self._began, self._longest_run = now, max(self._longest_run // 2, 1)
        return slow, [member for member in slow if self._servers[member].empty_windows >= STALLED_WINDOWS]

    def _learn(self, relative: dict[str, float]) -> None:
        """Of those that were not compared, what was seen before counts for half as much."""
        for member in self._speeds.keys() - relative.keys():
            self._speeds[member] = min(2 * self._speeds[member], 1.0)
        for member, speed in relative.items():
            self._speeds[member] = min(max(speed, LEAST_SPEED), 1.0)


def _usual(rates: dict[str, float]) -> dict[str, float]:
    """Member → the median rate of the others; of all where they are so many that this is the same."""
    if len(rates) < 2:
        return {}
    if len(rates) > MANY:
        return dict.fromkeys(rates, median(rates.values()))
    return {member: median(rate for other, rate in rates.items() if other != member) for member in rates}
