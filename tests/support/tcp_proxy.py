"""A TCP proxy on loopback that does to connections what networks do: loses all, is late, slow or lossy, breaks.

It stands in for the kernel where that has no means of its own (tc netem). Loss is what TCP makes of it: a chunk comes
later by a retransmission's time, and all behind it as well.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16
_POLL_S = 0.05
_ROOM = 1 << 20
"""Bytes under way in one direction; more is not taken, as by a full link."""
_RESENT_S = 0.2
"""What a lost packet costs: Linux's shortest retransmission timeout."""


@dataclass(frozen=True)
class Weather:
    """What a link does to each chunk of at most 64 KiB, in each direction."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = float("inf")
    loss: float = 0.0
    """How likely a chunk is sent again."""


class TcpProxy:
    """Passes bytes on to `target` (host:port) until `cut`: from then on nothing arrives, and nobody is told.

    with TcpProxy(etcd.endpoint) as proxy:
        ...  # a client uses proxy.endpoint
        proxy.cut()
    """

    def __init__(self, target: str, host: str = "127.0.0.1", port: int = 0) -> None:
        there, _, target_port = target.rpartition(":")
        self._target = (there, int(target_port))
        self._listener = socket.create_server((host, port))
        self._cut: frozenset[str] = frozenset()
        self._weather = Weather()
        self._resets = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def cut(self, *ways: str) -> None:
        """Lose all that comes, on connections that are there and on new ones. `ways`: only "there" (to the target) or
        "back": the connection is half open."""
        self._cut = frozenset(ways or ("there", "back"))

    def mend(self) -> None:
        """Pass on again what comes from now on, in fine weather."""
        self._cut = frozenset()
        self._weather = Weather()

    def disturb(self, weather: Weather) -> None:
        """Let it be so from now on."""
        self._weather = weather

    def reset(self) -> None:
        """Break all connections that are there, by a reset to both ends."""
        self._resets += 1

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            if not select.select([self._listener], [], [], _POLL_S)[0]:
                continue
            client, _ = self._listener.accept()
            self._threads.append(threading.Thread(target=self._pass_on, args=(client,), daemon=True))
            self._threads[-1].start()

    def _pass_on(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        resets = self._resets
        with client, server:
            ways = [_Way("there", client, server), _Way("back", server, client)]
            try:
                while not self._stop.is_set() and not all(way.is_over for way in ways):
                    if self._resets != resets:
                        for end in (client, server):
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return
                    self._turn([way for way in ways if self._passes(way)])
            except OSError:
                return

    def _turn(self, ways: list[_Way]) -> None:
        """Take what has come, and give what is due."""
        readable = {way.source: way for way in ways if way.has_room}
        pause_s = min([_POLL_S, *(way.due_in_s for way in ways)])
        if not readable:
            self._stop.wait(pause_s)
        for ready in select.select(list(readable), [], [], pause_s)[0] if readable else []:
            if self._passes(readable[ready]):  # it may have been cut meanwhile
                readable[ready].take(self._weather)
        for way in ways:
            if self._passes(way):
                way.give()

    def _passes(self, way: _Way) -> bool:
        return way.name not in self._cut


class _Way:
    """One direction of a connection, with what is under way in it."""

    def __init__(self, name: str, source: socket.socket, sink: socket.socket) -> None:
        self.name = name
        self.source = source
        self._sink = sink
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._byte_count = 0
        self._free_at = 0.0
        self._is_ended = False
        self.is_over = False

    @property
    def has_room(self) -> bool:
        return not self._is_ended and self._byte_count < _ROOM

    @property
    def due_in_s(self) -> float:
        return max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else _POLL_S

    def take(self, weather: Weather) -> None:
        data = self.source.recv(_CHUNK)
        self._is_ended = not data
        due = time.monotonic() + weather.delay_s + random.uniform(0.0, weather.jitter_s)
        if random.random() < weather.loss:
            due += _RESENT_S
        self._free_at = max(due, self._free_at) + len(data) / weather.bytes_per_s
        self._under_way.append((self._free_at, data))
        self._byte_count += len(data)

    def give(self) -> None:
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, data = self._under_way.popleft()
            self._byte_count -= len(data)
            if data:
                self._sink.sendall(data)
            else:
                self._sink.shutdown(socket.SHUT_WR)
                self.is_over = True
