"""A lease's keeper on its own: what it claims when the lease is lost, and what it says of an outage."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from argosy.membership import etcd_lease
from argosy.membership.etcd_client import EtcdClient, EtcdOptions
from argosy.membership.etcd_lease import LeaseKeeper
from argosy.types.errors import UnavailableError

TTL_S = 2
LONG_S = 60


def kept_lease(etcd: Any, reclaim: Callable[[int], bool], *, ttl_s: int = TTL_S) -> tuple[LeaseKeeper, int]:
    """A keeper of a fresh lease, on which it can't write."""
    client = EtcdClient(EtcdOptions((etcd.endpoint,), lease_ttl_s=ttl_s, timeout_s=2.0))
    lease = client.grant(ttl_s)
    lost = threading.Event()
    return LeaseKeeper(client, lease, name="x", reclaim=reclaim, refresh=lambda _: False, on_lost=lost.set), lease


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_claim_that_takes_many_tries_takes_one_lease(own_etcd: Any, caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def reclaim(lease: int) -> bool:
        tries.append(lease)
        if len(tries) < 4:
            raise UnavailableError("etcd is away again")
        return True

    keeper, lease = kept_lease(own_etcd, reclaim, ttl_s=LONG_S)
    keeper._client.revoke(lease)
    keeper.refresh_now()  # finds out
    until(lambda: "is back with a new lease" in caplog.text)
    assert len(set(tries)) == 1
    assert own_etcd.lease_count() == 1
    assert caplog.text.count("lost its lease") == 1
    keeper.stop(5)
    assert own_etcd.lease_count() == 0


def test_a_claim_that_never_succeeds_leaves_no_lease(own_etcd: Any) -> None:
    tried = threading.Event()

    def reclaim(lease: int) -> bool:
        tried.set()
        raise UnavailableError("etcd is away again")

    keeper, lease = kept_lease(own_etcd, reclaim, ttl_s=LONG_S)
    keeper._client.revoke(lease)
    keeper.refresh_now()
    assert tried.wait(30)
    keeper.stop(5)
    assert own_etcd.lease_count() == 0


def test_a_long_outage_is_told_at_growing_intervals(
    own_etcd: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_lease, "_TELL_FACTOR", 1.5)
    keeper, _ = kept_lease(own_etcd, lambda lease: True)
    own_etcd.stop(signal.SIGKILL)
    until(lambda: caplog.text.count("could not renew its lease") == 3)
    keeper.stop(5)
    lines = [record.getMessage() for record in caplog.records]
    told = [float(line.split(" for ")[1].split()[0]) for line in lines if "could not renew its lease" in line]
    assert told[0] >= TTL_S
    assert all(later > 1.4 * earlier for earlier, later in itertools.pairwise(told))
