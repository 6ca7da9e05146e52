"""What the controller has seen of each member itself: its samples, when they last came on, and its last error.

Membership says how a member sees itself. A server that answers health checks and makes nothing looks well there; what
nobody can report of himself is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MAX_MESSAGE = 300
"""Characters of an error that are kept."""
MAX_MEMBERS = 4096
"""Members that are remembered, of all that ever were."""


@dataclass(slots=True)
class MemberVitals:
    """Of one member."""

    sample_count: int = 0
    """Samples that it has been sent and hasn't ended."""
    progress_at: float | None = None
    """When it last gave tokens or got its first sample, on time.monotonic's clock; None: it has no samples."""
    error: str = ""
    """The last thing that went wrong with it; empty: nothing has."""
    error_at: float = 0.0
    """When that was, seconds since 1970."""


@dataclass(slots=True)
class Vitals:
    """Of all members that the controller calls. `clock` is for tests."""

    clock: Callable[[], float] = time.monotonic
    _members: dict[str, MemberVitals] = field(default_factory=dict)

    def of(self, member: str) -> MemberVitals:
        """What is known of it; all empty for one that was never heard of."""
        return self._members.get(member, MemberVitals())

    @property
    def all(self) -> Mapping[str, MemberVitals]:
        """By member id."""
        return self._members

    def sent(self, member: str, count: int = 1) -> None:
        """It has got samples."""
        one = self._known(member)
        if not one.sample_count:
            one.progress_at = self.clock()
        one.sample_count += count

    def ended(self, member: str, count: int = 1) -> None:
        """Samples of it have ended, whichever way."""
        one = self._known(member)
        one.sample_count -= count
        one.progress_at = self.clock() if one.sample_count > 0 else None

    def moved(self, member: str) -> None:
        """It gave tokens."""
        one = self._known(member)
        if one.sample_count > 0:
            one.progress_at = self.clock()

    def failed(self, member: str, error: object) -> None:
        """A call to it failed, or what it gave can't be used."""
        one = self._known(member)
        one.error, one.error_at = str(error)[:MAX_MESSAGE], time.time()

    def idle_s(self, member: str) -> float:
        """Seconds since it last gave anything, while it has samples; 0 without."""
        at = self.of(member).progress_at
        return 0.0 if at is None else self.clock() - at

    def _known(self, member: str) -> MemberVitals:
        if member not in self._members and len(self._members) >= MAX_MEMBERS:
            idle = next((name for name, one in self._members.items() if not one.sample_count), None)
            if idle is not None:
                del self._members[idle]
        return self._members.setdefault(member, MemberVitals())
