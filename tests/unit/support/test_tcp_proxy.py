"""What the fault-injecting proxy does to real connections of this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from support.tcp_proxy import TcpProxy, Weather


@pytest.fixture
def echo() -> Iterator[str]:
    """Sends everything back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:  # the test is over
                return
            threading.Thread(target=answer, args=(one,), daemon=True).start()

    def answer(one: socket.socket) -> None:
        with one:
            try:
                while data := one.recv(1 << 16):
                    one.sendall(data)
            except ConnectionResetError:  # what the proxy was asked for
                return

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(echo: str) -> Iterator[TcpProxy]:
    with TcpProxy(echo) as running:
        yield running


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    host, _, port = proxy.endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as connection:
        assert exchange(connection, b"hello") < 10.0
        yield connection


def exchange(client: socket.socket, data: bytes) -> float:
    """Seconds until it has come back, whole and in order."""
    began = time.monotonic()
    client.sendall(data)
    back = b""
    while len(back) < len(data):
        more = client.recv(1 << 16)
        assert more, "closed"
        back += more
    assert back == data
    return time.monotonic() - began


def test_it_is_late_in_both_directions(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.disturb(Weather(delay_s=0.1, jitter_s=0.05))
    assert exchange(client, b"late") >= 0.2


def test_it_is_slow(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.disturb(Weather(bytes_per_s=200_000))
    data = bytes(range(256)) * 200
    assert exchange(client, data) >= len(data) / 200_000


def test_a_lost_chunk_comes_later(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.disturb(Weather(loss=1.0))
    assert exchange(client, b"lost") >= 0.4
    proxy.mend()
    assert exchange(client, b"found") < 10.0


def test_a_reset_is_seen_and_a_new_connection_works(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    host, _, port = proxy.endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as again:
        exchange(again, b"again")


@pytest.mark.parametrize("way", ["there", "back"])
def test_half_open_is_silent_one_way_until_it_is_mended(proxy: TcpProxy, client: socket.socket, way: str) -> None:
    proxy.cut(way)
    client.sendall(b"anyone?")
    client.settimeout(0.4)
    with pytest.raises(TimeoutError):
        client.recv(64)
    proxy.mend()
    client.settimeout(10.0)
    assert client.recv(64) == b"anyone?"


def test_the_end_of_a_connection_is_passed_on(proxy: TcpProxy, client: socket.socket) -> None:
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    back = b""
    while more := client.recv(64):
        back += more
    assert back == b"last"
