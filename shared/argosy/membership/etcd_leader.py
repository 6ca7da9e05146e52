"""The leader's seat of a run in etcd: on a lease, with a term that only rises."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from argosy.membership.etcd_records import Leased, RunBlocking, Store

_LOG = logging.getLogger(__name__)
_RETURN_POLL_S = 0.2


class EtcdLeadership(Leased):
    """The leader's seat of one run."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        candidate: str,
        run: RunBlocking,
        forget: Callable[[Any], None],
        min_term: int = 1,
    ) -> None:
        super().__init__(store, f"leader {candidate} of {run_id}", run, forget)
        self._run_id = run_id
        self._candidate = candidate
        self._term = 0
        self._min_term = min_term
        self._seen = 0
        """The highest term that this candidate has heard of, here or in an etcd that has lost its data since."""
        self._forgotten_since: float | None = None
        """When etcd was first found to know less than this candidate."""

    @property
    def term(self) -> int:
        """The fencing number."""
        return self._term

    @property
    def lost(self) -> bool:
        """Whether a newer leader exists, or this one was resigned."""
        return self._lost_now or self._closed

    def holds(self, run_id: str, term: int) -> bool:
        """Whether this is the leadership of a run with a term, and nobody is known to have taken it."""
        return (self._run_id, self._term) == (run_id, term) and not self.lost

    async def wait_lost(self) -> None:
        """Return when the leadership is lost or resigned."""
        await self._lost.wait()

    async def resign(self) -> None:
        """Free the seat at once."""
        self._lost.set()
        await self._release()

    def saw(self, seat: bytes) -> None:
        """Somebody else sits there: a term of ours must be higher, whatever becomes of etcd's data."""
        try:
            self._seen = max(self._seen, int(json.loads(seat)["term"]))
        except (ValueError, KeyError, TypeError):
            _LOG.error("the leader's seat of %s holds no leader: %r", self._run_id, seat)

    def try_open(self) -> bool:
        """Take the seat if it is free (blocking)."""
        store, client = self._store, self._store.client
        taken, _ = client.range(store.leader(self._run_id))
        if taken:
            self.saw(taken[0].value)
            return False
        newest, revision = store.current_term(self._run_id)
        if newest < self._seen and self._lets_return(client.options.lease_ttl_s):
            return False
        self._seen = max(self._seen, newest)
        self._term = max(self._min_term, self._seen + 1)
        lease = client.grant(client.options.lease_ttl_s)
        unchanged = store.compare("MOD", store.term(self._run_id), mod_revision=revision)
        vacant = store.compare("CREATE", store.leader(self._run_id), create_revision=0)
        writes = [
            store.put(store.term(self._run_id), str(self._term).encode()),
            store.put(store.leader(self._run_id), self._seat(), lease=lease),
        ]
        won, _, _ = client.txn([unchanged, vacant], writes)
        if not won:
            client.revoke(lease)
            return False
        self._keep(lease, self._reclaim, self._reclaim)
        return True

    def _lets_return(self, ttl_s: float) -> bool:
        """etcd has lost its data: the leader gets the time of a lease to sit down again. Blocks for a moment."""
        self._forgotten_since = self._forgotten_since or time.monotonic()
        if time.monotonic() - self._forgotten_since > ttl_s:
            return False
        time.sleep(_RETURN_POLL_S)
        return True

    def _seat(self) -> bytes:
        return json.dumps({"candidate": self._candidate, "term": self._term}, sort_keys=True).encode()

    def _reclaim(self, lease: int) -> bool:
        """Sit down again under the same term, if nobody has led since: the term is the fence, not the lease.

        An etcd that has lost its data is told the term again.
        """
        store = self._store
        term_key = store.term(self._run_id)
        if store.current_term(self._run_id)[1] == 0:
            unwritten = store.compare("MOD", term_key, mod_revision=0)
            store.client.txn([unwritten], [store.put(term_key, str(self._term).encode())])
        newest = store.compare("VALUE", term_key, value=str(self._term).encode())
        return store.write_own(
            store.leader(self._run_id), self._seat(), lease, ours=lambda value: value == self._seat(), guard=newest
        )
