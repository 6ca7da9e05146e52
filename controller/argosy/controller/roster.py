"""The servers of one role as membership has them: who is there, a connection to each, and who must hear of a change.

    membership.watch(role) ──► update(snapshot) ──► Listener.joined / changed / left
    a child's death        ──► died(member id …) ─► Listener.left, at once: a lease ends only after its time

A server that is JOINING isn't in it: it has nothing to call yet. Another incarnation under a known id is another
server: the old one has left, the new one has joined. A roster that is `fixed` keeps the servers that it began with and
refuses others: which server does what must not change (deterministic runs), or servers and trainer share devices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Generic, Protocol, TypeVar

from argosy.config import Config
from argosy.controller.live import Live
from argosy.membership.interface import Membership
from argosy.types.errors import InternalError
from argosy.types.records import Member, MemberState

log = logging.getLogger(__name__)

_CLOSE_S = 5.0


class Closable(Protocol):
    """A connection."""

    async def close(self) -> None:
        """End it: what runs over it fails with UnavailableError."""
        ...


Client = TypeVar("Client", bound=Closable)


class Listener(Protocol):
    """Hears of changes, in their order, in the event loop. Must not raise."""

    def joined(self, member: Member) -> None:
        """A server is there that wasn't, or is another life of one that was."""

    def changed(self, member: Member) -> None:
        """Its state is another one."""

    def left(self, member: Member) -> None:
        """A server is gone; its connection is being closed."""


class Roster(Generic[Client]):
    """Follows membership.

    Args:
        role: Of the servers.
        connect: Opens a connection to a member.
        members: Who is there at the start.
        fixed: Keep to these.
        accepts: Whether a member may join at all.
    """

    def __init__(
        self,
        role: str,
        connect: Callable[[Member], Client],
        members: Sequence[Member] = (),
        *,
        fixed: bool = False,
        accepts: Callable[[Member], bool] = lambda member: True,
    ) -> None:
        self.role = role
        self.fixed = fixed
        self._connect = connect
        self._accepts = accepts
        self._failure: BaseException | None = None
        self._entries: dict[str, tuple[Member, Client]] = {}
        self._pools: dict[str, str] = {}
        self._dead: dict[str, str] = {}
        """Member → the incarnation whose process has ended."""
        self._refused: set[tuple[str, str]] = set()
        self._listeners: list[Listener] = []
        self._closing: set[asyncio.Task[None]] = set()
        for member in members:
            self._join(member)

    @property
    def clients(self) -> Mapping[str, Client]:
        """A live view."""
        return Live(self._entries, self.check)

    @property
    def pools(self) -> Mapping[str, str]:
        """Member → its pool, of everyone who ever was here. A live view."""
        return self._pools

    @property
    def lost(self) -> Set[str]:
        """Ids whose process has ended by itself, and that were not born again. A live view."""
        return self._dead.keys()

    def member(self, member_id: str) -> Member | None:
        """Its newest record; None if it isn't there."""
        entry = self._entries.get(member_id)
        return None if entry is None else entry[0]

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell it of changes from now on; call what is returned to end that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def ended(self, following: asyncio.Task[None]) -> None:
        """Called when `follow` has ended: nobody will hear of changes any more."""
        if not following.cancelled() and (error := following.exception()) is not None:
            self._failure = error
            log.error("the %s servers can't be followed any more", self.role, exc_info=error)

    def check(self) -> None:
        """Raise InternalError if membership can't be followed any more, which is a defect. To go through `clients`
        checks too: nobody goes on for ever with what was there once."""
        if self._failure is not None:
            raise InternalError(f"the {self.role} servers can't be followed: {self._failure!r}") from self._failure

    async def follow(self, membership: Membership) -> None:
        """Keep up with membership until cancelled, or until it is closed."""
        async for snapshot in membership.watch(self.role):
            self.update(snapshot)

    def update(self, snapshot: Sequence[Member]) -> None:
        """Take in who is there now."""
        for member in snapshot:
            dead = self._dead.get(member.member_id)
            if dead is not None and _life(member.incarnation) != _life(dead):
                del self._dead[member.member_id]  # born again
        if self.fixed:
            self._refuse_others(snapshot)
            return
        there = {member.member_id: member for member in snapshot if self._is_there(member)}
        for member_id, (known, client) in list(self._entries.items()):
            now = there.get(member_id)
            if now is None or not _same_life(known, now):
                self._leave(member_id)
                continue
            self._entries[member_id] = (now, client)
            if now.state is not known.state:
                for listener in list(self._listeners):
                    listener.changed(now)
        for member in there.values():
            if member.member_id not in self._entries:
                self._join(member)

    def renew(self, members: Sequence[Member]) -> None:
        """Take these lives in place of those that had the same ids, where the roster is fixed. Another one learns of
        them from membership, which knows better who has left since."""
        for member in members if self.fixed else ():
            member_id, dead = member.member_id, self._dead.get(member.member_id)
            if dead is not None and _life(dead) == _life(member.incarnation):
                continue
            known = self.member(member_id)
            if known is not None and not _same_life(known, member):
                self._leave(member_id)
            self._dead.pop(member_id, None)
            if member_id not in self._entries:
                self._join(member)

    def died(self, member_id: str, incarnation: str) -> None:
        """The process of a member has ended: nothing more comes from this life of it, whatever membership says."""
        self._dead[member_id] = incarnation
        entry = self._entries.get(member_id)
        if entry is not None and _life(entry[0].incarnation) == _life(incarnation):
            self._leave(member_id)

    async def close(self) -> None:
        """End all connections."""
        self._listeners.clear()
        for member_id in list(self._entries):
            self._leave(member_id)
        while self._closing:
            await asyncio.wait(set(self._closing))

    def _is_there(self, member: Member) -> bool:
        dead = self._dead.get(member.member_id)
        if member.state is MemberState.JOINING or (dead is not None and _life(member.incarnation) == _life(dead)):
            return False
        if not self._accepts(member):
            self._refuse(member, f"its pool {member.pool!r} is none of this run's")
            return False
        return True

    def _refuse_others(self, snapshot: Sequence[Member]) -> None:
        """Of a fixed roster: say who gets no work, and why."""
        for member in snapshot:
            entry, dead = self._entries.get(member.member_id), self._dead.get(member.member_id)
            known = dead if entry is None else entry[0].incarnation
            if known is None or _life(known) != _life(member.incarnation):
                self._refuse(
                    member, "a run with argosy.deterministic or argosy.colocated keeps the servers that it began with"
                )

    def _refuse(self, member: Member, why: str) -> None:
        named = (member.member_id, _life(member.incarnation))
        if named not in self._refused:
            self._refused.add(named)
            log.warning("%s server %s at %s gets no work: %s", self.role, member.member_id, member.address, why)

    def _join(self, member: Member) -> None:
        self._entries[member.member_id] = (member, self._connect(member))
        self._pools[member.member_id] = member.pool
        log.info("%s server %s at %s joins", self.role, member.member_id, member.address)
        for listener in list(self._listeners):
            listener.joined(member)

    def _leave(self, member_id: str) -> None:
        member, client = self._entries.pop(member_id)
        log.info("%s server %s at %s leaves", self.role, member_id, member.address)
        for listener in list(self._listeners):
            listener.left(member)
        closing = asyncio.ensure_future(self._close(member_id, client))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, member_id: str, client: Client) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await client.close()
        except TimeoutError:
            log.warning("the connection to %s could not be closed within %g s", member_id, _CLOSE_S)


def _life(incarnation: str) -> str:
    """The process's own token: a lease that was lost and taken anew adds a number to it."""
    return incarnation.partition(".")[0]


def _same_life(one: Member, other: Member) -> bool:
    return _life(one.incarnation) == _life(other.incarnation) and one.address == other.address


def keeps_servers(config: Config) -> bool:
    """Whether a run works with the servers that it began with, and no others."""
    return config.argosy.deterministic or config.argosy.colocated
