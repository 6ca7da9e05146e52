"""Transport options of servers and clients in one place, so that no limit is set on one side only."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MESSAGE_BYTES = 64 << 20
"""Default limit of one message, in each direction. Large payloads are chunked and stay far below it."""

_MAX_METADATA_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """Options of channels and servers."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Longest message sent or received, ≥ 1. Both sides need the same."""
    keepalive_time_s: float = 10.0
    """A connection with calls on it that was silent for so long is pinged; below 5 s a server may end it for that."""
    keepalive_timeout_s: float = 10.0
    """A ping unanswered for so long means that the peer is gone: its calls end with UnavailableError."""
    max_concurrent_calls: int = 1000
    """Calls that a server takes at once, open streams included; more are refused as overload."""
    connect_timeout_s: float = 5.0
    """Longest time for one attempt to connect."""

    def common(self) -> list[tuple[str, int]]:
        """gRPC arguments of both sides."""
        return [
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", 2 * _MAX_METADATA_BYTES),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_time_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.keepalive_timeout_s)),
            # keepalive_timeout alone finds a frozen peer only after a minute: pings have a timeout of their own.
            ("grpc.http2.ping_timeout_ms", _ms(self.keepalive_timeout_s)),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def client(self) -> list[tuple[str, int]]:
        """gRPC arguments of a channel."""
        return [
            *self.common(),
            ("grpc.enable_retries", 0),  # argosy.rpc.retry does it, with our request ids and our bounds
            ("grpc.enable_http_proxy", 0),  # a fleet's own traffic never goes through a proxy of the environment
            ("grpc.use_local_subchannel_pool", 1),  # a connection each: no stale back-off shared with an older client
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", _ms(self.connect_timeout_s)),
        ]

    def server(self) -> list[tuple[str, int]]:
        """gRPC arguments of a server."""
        return [
            *self.common(),
            ("grpc.so_reuseport", 0),  # else a second server on the same port would silently share its calls
            ("grpc.http2.min_ping_interval_without_data_ms", 4000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 4000),
        ]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
