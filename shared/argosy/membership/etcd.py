"""Membership in etcd: leased keys, list-then-watch, elections with a rising term.

Keys under `prefix`:
    members/<member_id>        a member's record, on the member's lease
    terms/<run_id>             the newest term of a run, for ever
    leaders/<run_id>           the present leader's name and term, on the leader's lease
    names/<member_id>          a name that is kept for a member about to register, on a short lease
    state/<run_id>/<key>       the run's small state, written only by the holder of the newest term
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

from argosy.membership.codec import decode_member
from argosy.membership.etcd_client import EtcdClient, EtcdOptions
from argosy.membership.etcd_leader import EtcdLeadership
from argosy.membership.etcd_records import EtcdRegistration, Store
from argosy.membership.etcd_watch import PrefixWatch
from argosy.membership.interface import StateValue
from argosy.membership.memory import fenced
from argosy.types.errors import ArgosyError, CorruptDataError, UnavailableError
from argosy.types.records import Member

_LOG = logging.getLogger(__name__)
_STOP_S = 2.0
_Result = TypeVar("_Result")


class EtcdMembership:
    """The `Membership` interface over an etcd cluster. Make it and use it inside one event loop."""

    def __init__(self, options: EtcdOptions) -> None:
        self._store = Store(EtcdClient(options), options.prefix.rstrip("/"))
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="etcd-call")
        self._watches: set[PrefixWatch] = set()
        self._kept: set[EtcdRegistration | EtcdLeadership] = set()
        self._closed = False

    async def register(self, member: Member) -> EtcdRegistration:
        """Publish `member` on a new lease; a dead process's entry with the same id goes, its lease with it."""
        registration = EtcdRegistration(self._store, member, self._run, self._kept.discard)
        await self._run(registration.open)
        self._kept.add(registration)
        return registration

    async def members(self, role: str | None = None) -> tuple[Member, ...]:
        """The members of a role as of now, sorted by id."""
        listed, _ = await self._run(lambda: self._store.client.range(self._store.members, prefix=True))
        return _members({kv.key: kv.value for kv in listed}, role)

    async def watch(self, role: str | None = None) -> AsyncIterator[tuple[Member, ...]]:
        """The present snapshot, then the newest after each change; ends when the membership is closed."""
        last: tuple[Member, ...] | None = None
        async for content in self._follow(self._store.members):
            current = _members(content, role)
            if current != last:
                last = current
                yield current

    async def elect(self, run_id: str, *, candidate: str, min_term: int = 1) -> EtcdLeadership:
        """Wait until the leader's seat of `run_id` is free, then take it with the next term.

        Raises UnavailableError when etcd can't be asked at the start, or in the moment in which the seat is free.
        """
        leadership = EtcdLeadership(self._store, run_id, candidate, self._run, self._kept.discard, min_term)
        seat = self._store.leader(run_id)
        while not await self._run(leadership.try_open):
            async with aclosing(self._follow(seat)) as contents:
                async for content in contents:
                    if seat not in content:
                        break
                    leadership.saw(content[seat])
        self._kept.add(leadership)
        return leadership

    async def current_term(self, run_id: str) -> int:
        """The newest term; 0 if nobody ever led."""
        return await self._run(lambda: self._store.current_term(run_id)[0])

    async def get_state(self, run_id: str, key: str) -> StateValue | None:
        """One value of the run's state."""
        listed, _ = await self._run(lambda: self._store.client.range(self._store.state(run_id, key)))
        return StateValue(listed[0].value.decode(), listed[0].mod_revision) if listed else None

    async def put_state(self, run_id: str, key: str, value: str, *, term: int) -> int:
        """Write as the leader of `term`, in one transaction with the check of the term."""
        written, revision = await self._guarded_put(run_id, key, value, term, [])
        if not written:
            raise self._refused(run_id, term, await self.current_term(run_id))
        return revision

    async def compare_and_swap(
        self, run_id: str, key: str, value: str, *, expected_revision: int, term: int
    ) -> StateValue | None:
        """Write only if the key is still at `expected_revision`. Never retried: its answer may be lost."""
        unchanged = self._store.compare("MOD", self._store.state(run_id, key), mod_revision=expected_revision)
        written, revision = await self._guarded_put(run_id, key, value, term, [unchanged])
        if written:
            return StateValue(value, revision)
        current = await self.current_term(run_id)
        if current != term:
            raise self._refused(run_id, term, current)
        return None

    async def claim_name(self, names: Iterable[str], *, ttl_s: int) -> str:
        """The first of the names that no member has and nobody else has claimed; kept for the caller for `ttl_s`, in
        which it is to register. Raises StateError if there are no more names."""
        return await self._run(lambda: self._store.claim_name(names, ttl_s))

    async def forget_members(self) -> int:
        """Delete every member and leader entry: for a launcher whose etcd nobody else uses, after a crash."""
        gone = await self._run(lambda: self._store.client.delete_prefix(self._store.members))
        return gone + await self._run(lambda: self._store.client.delete_prefix(self._store.leaders))

    async def close(self) -> None:
        """End watches, registrations and leaderships, then the connection; bounded in time."""
        if self._closed:
            return
        self._closed = True
        watches = list(self._watches)
        for watch in watches:
            watch.stop()
        for kept in list(self._kept):
            await (kept.close() if isinstance(kept, EtcdRegistration) else kept.resign())
        for watch in watches:
            await self._run(functools.partial(watch.join, _STOP_S))
        self._store.client.close()
        self._threads.shutdown(wait=False)

    def _refused(self, run_id: str, term: int, current: int) -> ArgosyError:
        leads = any(isinstance(kept, EtcdLeadership) and kept.holds(run_id, term) for kept in self._kept)
        if leads and current < term:
            return UnavailableError(f"etcd has lost its data, and will be told again that term {term} leads {run_id!r}")
        return fenced(run_id, term, current)

    async def _follow(self, prefix: str) -> AsyncGenerator[dict[str, bytes], None]:
        watch = PrefixWatch(self._store.client, prefix)
        self._watches.add(watch)
        try:
            async for content in watch.contents():
                yield content
        finally:
            watch.stop()
            self._watches.discard(watch)

    async def _guarded_put(self, run_id: str, key: str, value: str, term: int, compare: list[Any]) -> tuple[bool, int]:
        guard = self._store.compare("VALUE", self._store.term(run_id), value=str(term).encode())
        put = self._store.put(self._store.state(run_id, key), value.encode())
        written, _, revision = await self._run(lambda: self._store.client.txn([guard, *compare], [put]))
        return written, revision

    async def _run(self, blocking: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, blocking)


def _members(content: dict[str, bytes], role: str | None) -> tuple[Member, ...]:
    found = []
    for key, value in content.items():
        try:
            member = decode_member(value)
        except CorruptDataError as error:  # somebody else's key must not end a run
            _LOG.error("passing over the membership key %s: %s", key, error)
            continue
        if role is None or member.role == role:
            found.append(member)
    return tuple(sorted(found, key=lambda member: member.member_id))
