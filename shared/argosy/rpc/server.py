"""A gRPC server with everything that each of our servers has: limits, keepalive, error mapping, health, reflection.

server = RpcServer.listen("127.0.0.1", 0)
await server.start()                             # health answers NOT_SERVING from now on
names = reward_service.add_to_server(core, server.server, gate)
await server.serve(names)                        # reflection knows the services; health answers SERVING
...
await server.stop(grace_s=10)

Health has two questions (`grpc.health.v1`; the answers wait for no computing). Readiness, asked as "" or by a service's
name: does it answer calls? Not while a model loads, nor while an engine is stuck. Liveness, asked as "liveness": does
the process itself still turn? A checker that restarts processes asks that one; it says SERVING from `start` to `stop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from argosy.rpc.fork import claim_process
from argosy.rpc.gate import Gate
from argosy.rpc.interceptors import ErrorInterceptor
from argosy.rpc.options import RpcOptions
from argosy.types.errors import StateError

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LIVENESS = "liveness"
"""What to ask health for, to learn whether the process lives, ready or not."""


class RpcServer:
    """A listening server; `server` is the grpc.aio server to which servicers are added."""

    def __init__(self, server: grpc.aio.Server, host: str, port: int, gate: Gate) -> None:
        self.server = server
        self.host = host
        self.port = port
        self.gate = gate
        self._health = health.aio.HealthServicer()
        self._names: list[str] = []
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    @classmethod
    def listen(
        cls,
        host: str,
        port: int = 0,
        *,
        gate: Gate | None = None,
        options: RpcOptions | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> RpcServer:
        """Bind `host:port` (port 0: a free one) inside a running event loop. StateError if the port is taken.

        `interceptors` come before ours, so that telemetry sees the final status.
        """
        claim_process()
        options = options or RpcOptions()
        server = grpc.aio.server(
            options=options.server(),
            interceptors=[*interceptors, ErrorInterceptor(options.max_message_bytes)],
            maximum_concurrent_rpcs=options.max_concurrent_calls,
        )
        target = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(target)
        except RuntimeError as refused:
            raise StateError(
                f"can't listen on {target}: the port is taken, or the host is not this machine's; "
                "choose another port, or 0 for a free one",
                address=target,
            ) from refused
        return cls(server, host, bound, gate or Gate())

    @property
    def address(self) -> str:
        """host:port as clients of this machine reach it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Accept connections. Health answers NOT_SERVING until `serve`, but for LIVENESS."""
        await self._health.set(LIVENESS, SERVING)
        await self.set_serving(False)
        await self.server.start()

    async def serve(self, names: Iterable[str]) -> None:
        """Announce the services by reflection, and answer SERVING for them and for the server as a whole."""
        self._names = list(names)
        reflection.enable_server_reflection([*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.server)
        await self.set_serving(True)

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the server ("") and of each of its services."""
        for name in ("", *self._names):
            await self._health.set(name, SERVING if serving else NOT_SERVING)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Answer NOT_SERVING, take no new calls, let calls and mutations finish within the grace, end."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(grace_s)
        await self.gate.drain(grace_s)
