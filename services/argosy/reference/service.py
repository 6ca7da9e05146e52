"""ReferenceService over a reference core."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from argosy.api.common.v1 import context_pb2
from argosy.api.reference.v1 import reference_service_pb2 as pb
from argosy.api.reference.v1 import reference_service_pb2_grpc
from argosy.roles.reference import Reference
from argosy.rpc.chunking import batch_parts, collect_batch, only, read_start
from argosy.rpc.gate import Gate, remaining_s

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ReferenceService"].full_name
_DEFAULT_TEMPERATURE = 1.0


class ReferenceServicer(reference_service_pb2_grpc.ReferenceServiceServicer):
    """Decodes, calls the core, encodes. See `argosy.rpc.interceptors`."""

    def __init__(self, core: Reference, gate: Gate) -> None:
        self._core = core
        self._gate = gate

    async def ComputeLogProbs(
        self,
        request_iterator: AsyncIterator[pb.ComputeLogProbsRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.ComputeLogProbsResponse]:
        """A batch up, the same samples with the named columns down."""
        start, parts = await read_start(request_iterator)
        self._gate.admit(start.context)
        batch = await collect_batch(parts)
        columns = tuple(start.columns)
        result = await self._core.compute_log_probs(
            batch,
            columns,
            temperature=start.temperature if start.HasField("temperature") else _DEFAULT_TEMPERATURE,
            deadline_s=remaining_s(start.context, context),
        )
        echo: context_pb2.ResponseContext | None = self._gate.respond()
        for part in batch_parts(only(result, "response_ids", *columns)):
            yield pb.ComputeLogProbsResponse(context=echo, payload=part)
            echo = None


def add_to_server(core: Reference, server: grpc.aio.Server, gate: Gate) -> list[str]:
    """Register the service; returns its full name."""
    reference_service_pb2_grpc.add_ReferenceServiceServicer_to_server(ReferenceServicer(core, gate), server)
    return [SERVICE_NAME]
