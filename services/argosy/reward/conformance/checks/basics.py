"""Is there a server, and what does it say about itself?"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.reward.conformance.findings import CheckError, CheckWarning
from argosy.reward.conformance.wire import Wire

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["RewardService"].full_name


async def reachable(wire: Wire) -> None:
    """Connect."""
    await wire.connect()


async def health(wire: Wire) -> None:
    """Ask for the server as a whole."""
    stub: Any = health_pb2_grpc.HealthStub(wire.channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=wire.timeout_s)
    except grpc.aio.AioRpcError as error:
        raise CheckWarning(f"grpc.health.v1.Health/Check ended with {error.code().name}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise CheckWarning(f"it says {status}", 'set the health of "" to SERVING once it can score')


async def reflection(wire: Wire) -> None:
    """List the services."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(wire.channel)  # type: ignore[arg-type]

    async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    names: list[str] = []
    try:
        async for answer in stub.ServerReflectionInfo(ask(), timeout=wire.timeout_s):
            names += [service.name for service in answer.list_services_response.service]
    except grpc.aio.AioRpcError as error:
        raise CheckWarning(f"reflection ended with {error.code().name}") from error
    if SERVICE_NAME not in names:
        raise CheckWarning(f"it names {', '.join(names) or 'nothing'}, but not {SERVICE_NAME}")


async def capabilities(wire: Wire) -> None:
    """Ask twice, and look at what comes."""
    found = await wire.capabilities()
    sources = list(found.data_sources)
    if not sources:
        raise CheckError("it judges no data source")
    if not all(source.strip() for source in sources):
        raise CheckError(f"a data source is blank: {sources[:10]}")
    if found.max_batch_size < 0:
        raise CheckError(f"max_batch_size is {found.max_batch_size}")
    again = await wire.capabilities()
    if found.SerializeToString(deterministic=True) != again.SerializeToString(deterministic=True):
        raise CheckError("asked twice, it answers differently", "a client asks once and relies on the answer")
    twice = [source for source, count in Counter(sources).items() if count > 1]
    if twice:
        raise CheckWarning(f"data source {twice[0]!r} is declared twice", "declare each data source once")
    if not found.name:
        raise CheckWarning("it has no name", "set name and version: logs and metrics show them")
