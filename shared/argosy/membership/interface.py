"""The membership interface: addresses, states, versions, leadership and small run state; never tensors or rollouts.

Words used here: a *lease* is the store's promise to delete a key unless it is renewed; a *term* is the fencing number
of a leader, strictly rising per run; an *incarnation* is one unbroken life of a member's lease: a member that lost its
lease and came back has another one, so that a watcher who saw neither leave nor join still notices.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from argosy.types.ids import PolicyVersion
from argosy.types.records import Member, MemberState


@dataclass(frozen=True, slots=True)
class StateValue:
    """One value of the run's small state."""

    value: str
    revision: int
    """Changes with each write of the key; pass it to `compare_and_swap`."""


class Registration(Protocol):
    """A member's own entry, kept alive until `close`."""

    @property
    def member(self) -> Member:
        """The record as last published (its incarnation changes when the lease was lost and taken anew)."""

    @property
    def superseded(self) -> bool:
        """True when another process has taken this member id: this one must stop serving."""

    async def wait_superseded(self) -> None:
        """Return when another process has taken this member id."""

    async def update(self, *, state: MemberState | None = None, version: PolicyVersion | None = None) -> Member:
        """Publish a new state or version; None keeps the old one.

        While the store is down the change is kept and published when it returns.
        Raises StateError after `close` or when superseded.
        """

    async def close(self) -> None:
        """Deregister: the entry is gone for watchers at once. Safe to call twice."""


class Leadership(Protocol):
    """A won election, held until `resign` or until it is lost."""

    @property
    def term(self) -> int:
        """Fencing number: higher than every earlier term of this name."""

    @property
    def lost(self) -> bool:
        """True when a newer leader exists, or may exist: stop at once."""

    async def wait_lost(self) -> None:
        """Return when the leadership is lost."""

    async def resign(self) -> None:
        """Give it up, so that a standby takes over at once. Safe to call twice."""


class Membership(Protocol):
    """The fleet's registry. Every method may raise UnavailableError when the store can't be reached, but `watch` and
    a running Registration or Leadership go on by themselves."""

    async def register(self, member: Member) -> Registration:
        """Publish `member` under a leased key.

        A dead process's entry with the same member id is taken over at once (newest wins); a live one finds itself
        superseded.
        """

    async def members(self, role: str | None = None) -> tuple[Member, ...]:
        """The members of a role (None: all), sorted by member id, as of now."""

    def watch(self, role: str | None = None) -> AsyncIterator[tuple[Member, ...]]:
        """Snapshots of a role (None: all): the present one first, then one after each change, the newest only.

        Never ends by itself: after a lost connection or a compaction it reads everything again.
        """

    async def elect(self, run_id: str, *, candidate: str, min_term: int = 1) -> Leadership:
        """Wait until `candidate` leads `run_id`. Its term is ≥ `min_term` and > every earlier term."""

    async def current_term(self, run_id: str) -> int:
        """The newest term of a run; 0 if nobody ever led it."""

    async def get_state(self, run_id: str, key: str) -> StateValue | None:
        """One value of the run's state; None if never written."""

    async def put_state(self, run_id: str, key: str, value: str, *, term: int) -> int:
        """Write one value as the leader of `term`; returns its revision. Raises FencedError for an old term."""

    async def compare_and_swap(
        self, run_id: str, key: str, value: str, *, expected_revision: int, term: int
    ) -> StateValue | None:
        """Write only if the key is still at `expected_revision` (0: not yet written).

        Returns the new value, or None when somebody else was first. Raises FencedError for an old term. When the
        answer is lost (UnavailableError) the write may or may not have happened: read before deciding.
        """

    async def close(self) -> None:
        """End watches, registrations and leaderships of this object, bounded in time."""
