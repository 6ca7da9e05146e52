"""What the worker, the keeper and a cell say to each other: small JSON datagrams, descriptors beside them.

worker → keeper  {"cell": true}                                             one more cell, please
keeper → worker  {"cell": true} + socket to it, its outermost process       or {"error": "…"}
cell → worker    {"ready": {part: true | "why not"}} + pid 1, its /proc     once
worker → cell    {} + file with the job, stdin, stdout, stderr …            once
cell → worker    {"started": true}; later {"status": n, "cpu_s": s, "peak_bytes": n}
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_BYTES = 65536
_MOST_DESCRIPTORS = 8


def send(to: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """One datagram. Raises OSError if nobody is there."""
    socket.send_fds(to, [json.dumps(message).encode()[:_MOST_BYTES]], list(descriptors), socket.MSG_NOSIGNAL)


def receive(source: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next one, and the descriptors that came with it. Raises EOFError when the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(source, _MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        data = b""
    if not data:
        raise EOFError("the other side is gone")
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got {message!r}")
    return message, descriptors


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a datagram socket that tells when the other end is gone."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
