"""A TCP proxy on loopback that a test can cut, as a network that loses everything between two hosts does."""

from __future__ import annotations

import select
import socket
import threading
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16
_POLL_S = 0.05


class TcpProxy:
    """Passes bytes on to `target` (host:port) until `cut`: from then on nothing arrives, and nobody is told.

    with TcpProxy(etcd.endpoint) as proxy:
        ...  # a client uses proxy.endpoint
        proxy.cut()
    """

    def __init__(self, target: str, host: str = "127.0.0.1", port: int = 0) -> None:
        there, _, number = target.rpartition(":")
        self._target = (there, int(number))
        self._listener = socket.create_server((host, port))
        self._cut = threading.Event()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Lose all that comes, on connections that are there and on new ones."""
        self._cut.set()

    def mend(self) -> None:
        """Pass on again what comes from now on."""
        self._cut.clear()

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
        with client, server:
            other = {client: server, server: client}
            while not self._stop.is_set():
                if self._cut.is_set():
                    self._stop.wait(_POLL_S)
                    continue
                for ready in select.select(list(other), [], [], _POLL_S)[0]:
                    try:
                        data = ready.recv(_CHUNK)
                        if not data:
                            return
                        other[ready].sendall(data)
                    except OSError:
                        return
