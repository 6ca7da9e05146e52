"""The few etcd calls that membership needs, over `etcd3`'s channel and stubs, with our errors.

All calls block; `argosy.membership.etcd` runs them in its own threads. `etcd3.watch*` is never used: its watcher burns
a core while etcd is down.
"""

from __future__ import annotations

import ipaddress
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from argosy.membership.etcd_stubs import etcdrpc, load_etcd3
from argosy.types.errors import ConfigError, UnavailableError

_LOG = logging.getLogger(__name__)
_READ_TRIES = 4

# A frozen etcd is noticed in about 14 s; etcd itself refuses client pings more often than every 5 s.
_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """How to reach etcd and where our keys live in it."""

    endpoints: tuple[str, ...]
    """host:port of each server of the cluster."""
    prefix: str = "/argosy"
    """All keys start with it; two fleets on one etcd need two prefixes."""
    lease_ttl_s: int = 10
    """A member that can't renew for so long is gone for the others."""
    timeout_s: float = 3.0
    """Per call."""
    user: str | None = None
    password: str | None = None
    ca_cert: str | None = None
    """File with the CA certificate; setting it turns TLS on."""
    cert: str | None = None
    """File with the client's certificate, for mutual TLS."""
    key: str | None = None
    """File with the client's private key, for mutual TLS."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("argosy.membership.endpoints is empty: give at least one etcd server as host:port")
        for endpoint in self.endpoints:
            host, _, port = endpoint.rpartition(":")
            if not host or not port.isdigit():
                raise ConfigError(f"argosy.membership.endpoints: {endpoint!r} is not host:port")
        if self.lease_ttl_s < 2:
            raise ConfigError(f"argosy.membership.lease_ttl_s must be at least 2, got {self.lease_ttl_s}")

    def __repr__(self) -> str:  # the password must not reach a log
        return f"EtcdOptions(endpoints={self.endpoints}, prefix={self.prefix!r}, lease_ttl_s={self.lease_ttl_s})"


def _target(endpoints: Sequence[str]) -> tuple[str, int]:
    """(host, port) such that `host:port`, as etcd3 joins them, is a gRPC target of all endpoints.

    >>> _target(["127.0.0.1:1", "127.0.0.1:2"])
    ('ipv4:127.0.0.1:1,127.0.0.1', 2)
    """
    host, _, port = endpoints[0].rpartition(":")
    if len(endpoints) == 1:
        return host, int(port)
    addresses = [_ipv4(endpoint) for endpoint in endpoints]  # a multi-address target takes no names
    host, _, port = ("ipv4:" + ",".join(addresses)).rpartition(":")
    return host, int(port)


def _ipv4(endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    try:
        return f"{ipaddress.IPv4Address(host)}:{port}"
    except ValueError:
        pass  # a name: resolve it below
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise UnavailableError(f"the etcd endpoint {endpoint} has a name that doesn't resolve: {error}") from error


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key of the store."""

    key: str
    value: bytes
    mod_revision: int
    lease: int


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys that start with `prefix` (which is ASCII, so its last byte can be raised)."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


class EtcdClient:
    """Blocking calls with deadlines; every failure to reach etcd is an UnavailableError."""

    def __init__(self, options: EtcdOptions) -> None:
        self.options = options
        self.pb = etcdrpc()
        host, port = _target(options.endpoints)
        channel_options = list(_CHANNEL_OPTIONS)
        self._client = load_etcd3().client(
            host=host,
            port=port,
            timeout=options.timeout_s,
            ca_cert=options.ca_cert,
            cert_cert=options.cert,
            cert_key=options.key,
            grpc_options=channel_options,
        )
        self._watch = self.pb.WatchStub(self._client.channel)
        # etcd3 would log in while it is built, and refuses token credentials on plaintext: we do it ourselves, lazily.
        self._auth = self.pb.AuthStub(self._client.channel)
        self._token: str | None = None
        self._closed = False
        self._login_lock = threading.Lock()
        # One server of several that stands still is found out by keepalive pings; until then another is asked.
        self._worth_another = {grpc.StatusCode.UNAVAILABLE}
        if len(options.endpoints) > 1:
            self._worth_another.add(grpc.StatusCode.DEADLINE_EXCEEDED)

    def range(self, key: str, *, prefix: bool = False) -> tuple[list[KeyValue], int]:
        """(the key, or all keys that start with it; the store's revision)."""
        request = self.pb.RangeRequest(key=key.encode(), range_end=prefix_end(key) if prefix else b"")
        answer = self._call(self._client.kvstub.Range, request, tries=_READ_TRIES)
        return [_key_value(kv) for kv in answer.kvs], int(answer.header.revision)

    def txn(
        self, compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = (), *, tries: int = 1
    ) -> tuple[bool, list[Any], int]:
        """(whether every comparison held, the responses, the store's revision). Retry only what is idempotent."""
        request = self.pb.TxnRequest(compare=compare, success=success, failure=failure)
        answer = self._call(self._client.kvstub.Txn, request, tries=tries)
        return bool(answer.succeeded), list(answer.responses), int(answer.header.revision)

    def grant(self, ttl_s: int) -> int:
        """A new lease's id."""
        return int(self._call(self._client.leasestub.LeaseGrant, self.pb.LeaseGrantRequest(TTL=ttl_s)).ID)

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; a lease that is gone already is fine."""
        try:
            self._call(self._client.leasestub.LeaseRevoke, self.pb.LeaseRevokeRequest(ID=lease), tries=2)
        except UnavailableError as error:
            if error.metadata.get("code") != grpc.StatusCode.NOT_FOUND.name:
                raise

    def keep_alive(self, lease: int) -> int:
        """Renew; the seconds it now lives. ≤ 0: the lease is lost (etcd raises no error for that)."""

        def once(request: Any, timeout: float, metadata: Any) -> Any:
            for answer in self._client.leasestub.LeaseKeepAlive(iter([request]), timeout, metadata=metadata):
                return answer
            raise UnavailableError("etcd ended the keepalive stream without an answer")

        return int(self._call(once, self.pb.LeaseKeepAliveRequest(ID=lease)).TTL)

    def delete_prefix(self, prefix: str) -> int:
        """Delete all keys that start with `prefix`; how many there were."""
        request = self.pb.DeleteRangeRequest(key=prefix.encode(), range_end=prefix_end(prefix))
        return int(self._call(self._client.kvstub.DeleteRange, request, tries=_READ_TRIES).deleted)

    def open_watch(self, requests: Iterator[Any]) -> Any:
        """The bidirectional watch stream; the caller iterates and cancels it."""
        # hasleader: a server cut off from its cluster's majority ends the stream instead of going silent.
        try:
            return self._watch.Watch(requests, metadata=(*self._metadata(), ("hasleader", "true")))
        except ValueError as error:
            if not self._closed:
                raise
            raise UnavailableError("this etcd client is closed") from error

    def server_names(self) -> list[str]:
        """The names of the cluster's members, for telling our etcd from somebody else's on the same port."""
        answer = self._call(self._client.clusterstub.MemberList, self.pb.MemberListRequest())
        return [member.name for member in answer.members]

    def login(self) -> None:
        """Get a new token, when a user is configured."""
        if self.options.user is None:
            return
        request = self.pb.AuthenticateRequest(name=self.options.user, password=self.options.password or "")
        with self._login_lock:
            try:
                self._token = self._auth.Authenticate(request, self.options.timeout_s).token
            except grpc.RpcError as error:
                raise unavailable(error, self.options.endpoints) from error

    def close(self) -> None:
        """Close the channel; calls in flight end, later ones raise UnavailableError."""
        self._closed = True
        self._client.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._token is None else (("token", self._token),)

    def _call(self, method: Callable[..., Any], request: Any, *, tries: int = 1) -> Any:
        if self.options.user is not None and self._token is None:
            self.login()
        fresh_login = False
        for attempt in range(tries + 1):
            try:
                return method(request, self.options.timeout_s, metadata=self._metadata())
            except ValueError as error:
                if not self._closed:
                    raise
                # grpc says so when the channel was closed while another thread was about to call.
                raise UnavailableError("this etcd client is closed") from error
            except grpc.RpcError as error:
                if self.options.user is not None and not fresh_login and _is_auth_failure(error):
                    fresh_login = True  # tokens end with an etcd restart; the call was not executed
                    self.login()
                    continue
                if attempt + 1 >= tries or error.code() not in self._worth_another:
                    raise unavailable(error, self.options.endpoints) from error
            time.sleep(0.1 * 2**attempt * (0.5 + random.random()))
        raise UnavailableError(f"etcd at {', '.join(self.options.endpoints)} did not answer in {tries} tries")


def unavailable(error: grpc.RpcError, endpoints: Sequence[str]) -> UnavailableError:
    """Our error for a failed etcd call, with the status code's name in its metadata."""
    code = error.code()
    return UnavailableError(
        f"etcd at {', '.join(endpoints)} failed a call: {code.name}: {error.details()}. "
        "Is it running and reachable from here?",
        code=code.name,
    )


def _is_auth_failure(error: grpc.RpcError) -> bool:
    text = error.details() or ""
    return (
        error.code() == grpc.StatusCode.UNAUTHENTICATED or "invalid auth token" in text or "user name is empty" in text
    )


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(), kv.value, int(kv.mod_revision), int(kv.lease))
