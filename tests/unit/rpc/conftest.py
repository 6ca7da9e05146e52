"""Real servers on loopback: nothing of gRPC is mocked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from argosy.rpc.gate import Gate
from argosy.rpc.options import RpcOptions
from argosy.rpc.server import RpcServer

Serve = Callable[..., Awaitable[RpcServer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(add, options=…)` starts a server; `add(server, gate)` registers services and returns their names."""
    servers: list[RpcServer] = []

    async def start(
        add: Callable[..., list[str]], *, options: RpcOptions | None = None, gate: Gate | None = None
    ) -> RpcServer:
        server = RpcServer.listen("127.0.0.1", gate=gate or Gate("test-0"), options=options)
        servers.append(server)
        await server.start()
        await server.serve(add(server.server, server.gate))
        return server

    yield start
    for server in servers:
        await server.stop(0.1)
