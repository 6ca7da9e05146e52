"""Membership within one process: what `argosy.placement=inprocess` and tests use."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

from argosy.membership.interface import StateValue
from argosy.types.errors import FencedError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Member, MemberState


class MemoryMembership:
    """The `Membership` interface over plain dicts. Share one object between all parts of the process.

    There are no leases: whoever lives in this process lives as long as the process.
    """

    def __init__(self) -> None:
        self._members: dict[str, MemoryRegistration] = {}
        self._leaders: dict[str, MemoryLeadership] = {}
        self._terms: dict[str, int] = {}
        self._state: dict[tuple[str, str], StateValue] = {}
        self._revision = 0
        self._closed = False
        self._changed = asyncio.Condition()

    async def register(self, member: Member) -> MemoryRegistration:
        """Publish `member`; an older entry with the same id is superseded."""
        older = self._members.get(member.member_id)
        if older is not None:
            older.supersede()
        registration = MemoryRegistration(self, member)
        self._members[member.member_id] = registration
        await self.notify()
        return registration

    async def members(self, role: str | None = None) -> tuple[Member, ...]:
        """The members of a role, sorted by id."""
        return self._snapshot(role)

    async def watch(self, role: str | None = None) -> AsyncIterator[tuple[Member, ...]]:
        """The present snapshot, then one after each change; ends when the membership is closed."""
        last: tuple[Member, ...] | None = None
        while not self._closed:
            current = self._snapshot(role)
            if current != last:
                last = current
                yield current
                continue
            async with self._changed:
                if self._snapshot(role) == last and not self._closed:
                    await self._changed.wait()

    async def elect(self, run_id: str, *, candidate: str, min_term: int = 1) -> MemoryLeadership:
        """Wait for the present leader to resign, then take the next term."""
        async with self._changed:
            await self._changed.wait_for(lambda: run_id not in self._leaders)
            term = max(min_term, self._terms.get(run_id, 0) + 1)
            self._terms[run_id] = term
            leadership = MemoryLeadership(self, run_id, candidate, term)
            self._leaders[run_id] = leadership
            return leadership

    async def current_term(self, run_id: str) -> int:
        """The newest term; 0 if nobody ever led."""
        return self._terms.get(run_id, 0)

    async def get_state(self, run_id: str, key: str) -> StateValue | None:
        """One value of the run's state."""
        return self._state.get((run_id, key))

    async def put_state(self, run_id: str, key: str, value: str, *, term: int) -> int:
        """Write as the leader of `term`."""
        self._check_term(run_id, term)
        return self._write(run_id, key, value).revision

    async def compare_and_swap(
        self, run_id: str, key: str, value: str, *, expected_revision: int, term: int
    ) -> StateValue | None:
        """Write only if the key is still at `expected_revision`."""
        self._check_term(run_id, term)
        present = self._state.get((run_id, key))
        if (present.revision if present else 0) != expected_revision:
            return None
        return self._write(run_id, key, value)

    async def close(self) -> None:
        """End all watches; entries and leaderships go."""
        self._closed = True
        self._members.clear()
        for leadership in self._leaders.values():
            leadership.lose()
        self._leaders.clear()
        await self.notify()

    async def notify(self) -> None:
        """Wake the watchers and the candidates."""
        async with self._changed:
            self._changed.notify_all()

    async def remove(self, registration: MemoryRegistration) -> None:
        """Take an entry out, if it is still the one that counts."""
        member_id = registration.member.member_id
        if self._members.get(member_id) is registration:
            del self._members[member_id]
            await self.notify()

    async def vacate(self, run_id: str, leadership: MemoryLeadership) -> None:
        """Free the leader's seat, if `leadership` still holds it."""
        if self._leaders.get(run_id) is leadership:
            del self._leaders[run_id]
            await self.notify()

    def _snapshot(self, role: str | None) -> tuple[Member, ...]:
        found = [entry.member for entry in self._members.values() if role is None or entry.member.role == role]
        return tuple(sorted(found, key=lambda member: member.member_id))

    def _write(self, run_id: str, key: str, value: str) -> StateValue:
        self._revision += 1
        written = StateValue(value, self._revision)
        self._state[run_id, key] = written
        return written

    def _check_term(self, run_id: str, term: int) -> None:
        current = self._terms.get(run_id, 0)
        if term != current:
            raise fenced(run_id, term, current)


def fenced(run_id: str, term: int, current: int) -> FencedError:
    """The error of a writer whose term is not the run's."""
    return FencedError(
        f"term {term} of run {run_id!r} may not write its state: the current term is {current}; "
        "another controller leads this run now, so this one must stop",
        run_id=run_id,
        term=str(term),
        current_term=str(current),
    )


class MemoryRegistration:
    """An entry of `MemoryMembership`."""

    def __init__(self, owner: MemoryMembership, member: Member) -> None:
        self._owner = owner
        self._member = member
        self._superseded = asyncio.Event()
        self._closed = False

    @property
    def member(self) -> Member:
        """The record as last published."""
        return self._member

    @property
    def superseded(self) -> bool:
        """Whether a newer registration has taken this member id."""
        return self._superseded.is_set()

    def supersede(self) -> None:
        """Called by the owner when a newer registration takes the id."""
        self._superseded.set()

    async def wait_superseded(self) -> None:
        """Return when superseded."""
        await self._superseded.wait()

    async def update(self, *, state: MemberState | None = None, version: PolicyVersion | None = None) -> Member:
        """Publish a new state or version."""
        if self._closed or self.superseded:
            raise StateError(f"member {self._member.member_id} is no longer registered")
        self._member = dataclasses.replace(
            self._member, state=state or self._member.state, version=version or self._member.version
        )
        await self._owner.notify()
        return self._member

    async def close(self) -> None:
        """Deregister."""
        self._closed = True
        await self._owner.remove(self)


class MemoryLeadership:
    """A won election of `MemoryMembership`."""

    def __init__(self, owner: MemoryMembership, run_id: str, candidate: str, term: int) -> None:
        self._owner = owner
        self._run_id = run_id
        self._term = term
        self.candidate = candidate
        self._lost = asyncio.Event()

    @property
    def term(self) -> int:
        """The fencing number."""
        return self._term

    @property
    def lost(self) -> bool:
        """Whether it was resigned or lost."""
        return self._lost.is_set()

    def lose(self) -> None:
        """Called by the owner when it closes."""
        self._lost.set()

    async def wait_lost(self) -> None:
        """Return when it was resigned or lost."""
        await self._lost.wait()

    async def resign(self) -> None:
        """Give it up."""
        self._lost.set()
        await self._owner.vacate(self._run_id, self)
