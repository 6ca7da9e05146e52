"""A second process: serves every kind of call, with the service host's tracing. Prints its port."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from argosy.rpc.server import RpcServer
from argosy.telemetry.traces import setup_tracing, span
from argosy.types.errors import StateError


async def unary(request: bytes, context: Any) -> bytes:
    if request == b"refuse":
        raise StateError("not now")
    with span("work"):
        return request


async def down(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for _ in range(3):
        yield request


async def up(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def both(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def main(path: Path) -> None:
    tracing = setup_tracing("server-0", run_id="r1", path=path)
    server = RpcServer.listen("127.0.0.1", 0, interceptors=tracing.server_interceptors())
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Down": grpc.unary_stream_rpc_method_handler(down),
        "Up": grpc.stream_unary_rpc_method_handler(up),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }
    server.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    await server.start()
    await server.serve(["test.Echo"])
    print(server.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the test closes it
    await server.stop(1)
    tracing.shutdown()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
