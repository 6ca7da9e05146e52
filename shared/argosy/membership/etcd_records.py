"""Where things are in etcd, and a member's record there: an entry on a lease (etcd_leader.py has the other kind)."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from argosy.membership.codec import decode_member, encode_member
from argosy.membership.etcd_client import EtcdClient
from argosy.membership.etcd_lease import LeaseKeeper
from argosy.types.errors import CorruptDataError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Member, MemberState

_LOG = logging.getLogger(__name__)
_STOP_S = 4.0
_Result = TypeVar("_Result")


class RunBlocking(Protocol):
    """Runs a blocking call in a thread of the membership."""

    def __call__(self, blocking: Callable[[], _Result], /) -> Awaitable[_Result]:
        """Await its result."""


@dataclass(frozen=True, slots=True)
class Store:
    """The key layout, and the pieces of transactions over it."""

    client: EtcdClient
    prefix: str

    @property
    def members(self) -> str:
        """Prefix of all member records."""
        return f"{self.prefix}/members/"

    @property
    def leaders(self) -> str:
        """Prefix of all leaders' seats."""
        return f"{self.prefix}/leaders/"

    def member(self, member_id: str) -> str:
        """Key of one member's record."""
        return f"{self.members}{member_id}"

    def leader(self, run_id: str) -> str:
        """Key of the leader's seat of a run."""
        return f"{self.leaders}{run_id}"

    def term(self, run_id: str) -> str:
        """Key of a run's newest term."""
        return f"{self.prefix}/terms/{run_id}"

    def state(self, run_id: str, key: str) -> str:
        """Key of one value of a run's state."""
        return f"{self.prefix}/state/{run_id}/{key}"

    def compare(self, target: str, key: str, **value: Any) -> Any:
        """The condition that `key`'s VALUE, MOD, CREATE or LEASE equals the one value given."""
        compare = self.client.pb.Compare
        return compare(result=compare.EQUAL, target=getattr(compare, target), key=key.encode(), **value)

    def put(self, key: str, value: bytes, *, lease: int = 0, prev_kv: bool = False) -> Any:
        """A write as part of a transaction."""
        request = self.client.pb.PutRequest(key=key.encode(), value=value, lease=lease, prev_kv=prev_kv)
        return self.client.pb.RequestOp(request_put=request)

    def get(self, key: str) -> Any:
        """A read as part of a transaction."""
        return self.client.pb.RequestOp(request_range=self.client.pb.RangeRequest(key=key.encode()))

    def current_term(self, run_id: str) -> tuple[int, int]:
        """(newest term, revision of its key); zeros if nobody ever led."""
        listed, _ = self.client.range(self.term(run_id))
        return (int(listed[0].value), listed[0].mod_revision) if listed else (0, 0)

    def claim_name(self, names: Iterable[str], ttl_s: int) -> str:
        """See `EtcdMembership.claim_name`; blocking."""
        lease = self.client.grant(ttl_s)
        for name in names:
            key = f"{self.prefix}/names/{name}"
            free = [self.compare("CREATE", each, create_revision=0) for each in (key, self.member(name))]
            if self.client.txn(free, [self.put(key, b"", lease=lease)], tries=1)[0]:
                return name
        self.client.revoke(lease)
        raise StateError("all names are taken")

    def write_own(
        self, key: str, value: bytes, lease: int, *, ours: Callable[[bytes], bool], guard: Any = None
    ) -> bool:
        """Put `key` on `lease` if it is absent or `ours`; whether it was. Safe to repeat."""
        guards = [] if guard is None else [guard]
        put = self.put(key, value, lease=lease)
        on_lease = self.compare("LEASE", key, lease=lease)
        done, answers, _ = self.client.txn([on_lease, *guards], [put], [self.get(key)], tries=2)
        if done:
            return True
        found = answers[0].response_range.kvs
        if found and not ours(found[0].value):
            return False
        unchanged = self.compare("MOD", key, mod_revision=found[0].mod_revision if found else 0)
        return self.client.txn([unchanged, *guards], [put], tries=1)[0]


class Leased:
    """What the two kinds share: a keeper, and a way to tell the loop that the entry is lost."""

    def __init__(self, store: Store, name: str, run: RunBlocking, forget: Callable[[Any], None]) -> None:
        self._store = store
        self._name = name
        self._run = run
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._lost_now = False
        self._closed = False
        self._keeper: LeaseKeeper | None = None

    def _keep(self, lease: int, reclaim: Callable[[int], bool], refresh: Callable[[int], bool]) -> None:
        self._keeper = LeaseKeeper(
            self._store.client, lease, name=self._name, reclaim=reclaim, refresh=refresh, on_lost=self._set_lost
        )

    def _set_lost(self) -> None:
        self._lost_now = True
        try:
            self._loop.call_soon_threadsafe(self._lost.set)
        except RuntimeError:
            _LOG.info("%s was lost after its event loop had closed", self._name)

    async def _release(self) -> None:
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._forget(self)
            await self._run(lambda: keeper.stop(_STOP_S))


class EtcdRegistration(Leased):
    """A member's record on its own lease."""

    def __init__(self, store: Store, member: Member, run: RunBlocking, forget: Callable[[Any], None]) -> None:
        super().__init__(store, f"member {member.member_id}", run, forget)
        self._key = store.member(member.member_id)
        self._base = member.incarnation
        self._member = member
        self._life = 1
        self._lock = threading.Lock()  # the loop updates the record, the keeper's thread its incarnation

    @property
    def member(self) -> Member:
        """The record as last set; it reaches etcd at once, or as soon as etcd is back."""
        return self._member

    @property
    def superseded(self) -> bool:
        """Whether another process has taken this member id."""
        return self._lost_now

    async def wait_superseded(self) -> None:
        """Return when another process has taken this member id."""
        await self._lost.wait()

    def open(self) -> None:
        """Write the first record (blocking). An older entry goes, with its lease: one live lease per member."""
        client = self._store.client
        lease = client.grant(client.options.lease_ttl_s)
        put = self._store.put(self._key, self._encoded(), lease=lease, prev_kv=True)
        _, answers, _ = client.txn([], [put])
        older = answers[0].response_put.prev_kv.lease
        if older and older != lease:
            _LOG.warning("%s takes over from an earlier process with the same id", self._name)
            client.revoke(older)
        self._keep(lease, self._reclaim, self._write)

    async def update(self, *, state: MemberState | None = None, version: PolicyVersion | None = None) -> Member:
        """Publish a new state or version, now or when etcd is back."""
        keeper = self._keeper
        if self._closed or self._lost_now or keeper is None:
            raise StateError(f"{self._name} is no longer registered: another process has its id, or it was closed")
        with self._lock:
            self._member = dataclasses.replace(
                self._member, state=state or self._member.state, version=version or self._member.version
            )
            member = self._member
        await self._run(keeper.refresh_now)
        return member

    async def close(self) -> None:
        """Deregister at once: revokes the lease."""
        await self._release()

    def _encoded(self) -> bytes:
        with self._lock:
            return encode_member(self._member).encode()

    def _ours(self, value: bytes) -> bool:
        try:
            return decode_member(value).incarnation.partition(".")[0] == self._base
        except CorruptDataError:
            return False

    def _write(self, lease: int) -> bool:
        return self._store.write_own(self._key, self._encoded(), lease, ours=self._ours)

    def _reclaim(self, lease: int) -> bool:
        with self._lock:
            self._life += 1
            self._member = dataclasses.replace(self._member, incarnation=f"{self._base}.{self._life}")
        return self._write(lease)
