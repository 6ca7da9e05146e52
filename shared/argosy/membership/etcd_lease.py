"""A lease that is kept alive from its own thread, and what hangs on it is claimed again when it was lost (case F6)."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from argosy.membership.etcd_client import EtcdClient
from argosy.types.errors import UnavailableError

_LOG = logging.getLogger(__name__)
_RETRY_PAUSE_S = 0.5
_TELL_FACTOR = 10
"""An outage is told once it is longer than the lease, and again whenever it has become so many times longer."""


class LeaseKeeper:
    """Renews one lease every third of its life; the compute thread and the event loop are not involved.

    `reclaim(lease)` is called, in the keeper's thread, after the lease was lost (etcd says so by a TTL of 0) and a new
    one was granted: it writes the keys again and says whether they are still ours to write. False ends the keeper and
    calls `on_lost`. `refresh(lease)` writes the owner's newest content on the lease that is held, and says the same;
    what it could not write because etcd is down is written when etcd is back.
    """

    def __init__(
        self,
        client: EtcdClient,
        lease: int,
        *,
        name: str,
        reclaim: Callable[[int], bool],
        refresh: Callable[[int], bool],
        on_lost: Callable[[], None],
    ) -> None:
        self._client = client
        self._ttl_s = client.options.lease_ttl_s
        self._lease: int | None = lease
        self._granted: int | None = None
        """A new lease while what hung on the lost one isn't known to be claimed for it."""
        self._name = name
        self._reclaim = reclaim
        self._refresh = refresh
        self._on_lost = on_lost
        self._dirty = threading.Event()
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._renewed_at = time.monotonic()
        self._tell_after_s = float(self._ttl_s)
        self._told_late = False
        self._lost_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"etcd-lease {name}", daemon=True)
        self._thread.start()

    def refresh_now(self) -> None:
        """Write the newest content, or leave that to the keeper's thread while etcd is down. Blocks for one call."""
        self._dirty.set()
        try:
            kept = self._write_if_dirty()
        except UnavailableError as error:
            # A server that works has many changes: one line for each would fill its log while etcd is away.
            level = logging.DEBUG if self._told_late else logging.WARNING
            self._told_late = True
            _LOG.log(level, "%s will publish its changes when etcd is back: %s", self._name, error)
            self._wake.set()
            return
        if not kept:
            self._wake.set()  # most likely the lease is lost: the thread finds out, and claims anew or gives up

    def stop(self, timeout_s: float) -> None:
        """End the renewal and revoke the lease, so that its keys vanish at once. Blocks up to about `timeout_s`."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_s)
        try:
            for lease in (self._lease, self._granted):
                if lease is not None:
                    self._client.revoke(lease)
        except UnavailableError as error:
            _LOG.info("%s could not revoke its lease, it ends by itself in %d s: %s", self._name, self._ttl_s, error)

    def _run(self) -> None:
        pause = self._ttl_s / 3
        while not self._stop.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                if not self._renew():
                    self._on_lost()
                    return
                pause = self._ttl_s / 3
                self._tell_renewed()
            except UnavailableError as error:
                # etcd is down: the others go on with their last snapshot, and so do we.
                _LOG.debug("%s can't renew its lease now: %s", self._name, error)
                self._tell_away(error)
                pause = _RETRY_PAUSE_S * (0.5 + random.random())

    def _tell_away(self, error: UnavailableError) -> None:
        away_s = time.monotonic() - self._renewed_at
        if away_s > self._tell_after_s:
            self._tell_after_s = away_s * _TELL_FACTOR
            _LOG.warning(
                "%s could not renew its lease for %.1f s, and goes on with what it knows: %s", self._name, away_s, error
            )

    def _tell_renewed(self) -> None:
        if self._tell_after_s > self._ttl_s or self._told_late:
            away_s = time.monotonic() - self._renewed_at
            _LOG.warning("%s reaches etcd again, %.1f s after it last did", self._name, away_s)
        self._forget_outage()

    def _forget_outage(self) -> None:
        self._renewed_at, self._tell_after_s, self._told_late = time.monotonic(), float(self._ttl_s), False

    def _renew(self) -> bool:
        """One renewal; False when the keys are not ours any more."""
        if self._lease is None or self._client.keep_alive(self._lease) <= 0:
            self._lease = None
            if self._lost_at is None:  # claiming anew may take many tries, when etcd comes and goes
                self._lost_at = time.monotonic()
                _LOG.warning("%s lost its lease (paused or cut off for more than %d s)", self._name, self._ttl_s)
            if not self._claim():
                return False
            _LOG.warning("%s is back with a new lease after %.2f s", self._name, time.monotonic() - self._lost_at)
            self._lost_at = None
            self._forget_outage()
        return self._write_if_dirty()

    def _claim(self) -> bool:
        """Claim what hung on the lost lease for a new one, the same over all tries; False when it isn't ours."""
        if self._granted is None or self._client.keep_alive(self._granted) <= 0:
            self._granted = self._client.grant(self._ttl_s)
        if not self._reclaim(self._granted):
            self._client.revoke(self._granted)
            self._granted = None
            return False
        self._lease, self._granted = self._granted, None
        return True

    def _write_if_dirty(self) -> bool:
        """False when the keys are not ours any more."""
        with self._writing:
            lease = self._lease
            if lease is None or not self._dirty.is_set():
                return True
            self._dirty.clear()
            try:
                kept = self._refresh(lease)
            except UnavailableError:
                self._dirty.set()
                raise
            if not kept:
                self._dirty.set()
            return kept
