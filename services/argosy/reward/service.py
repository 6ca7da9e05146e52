"""RewardService over a reward core."""

from __future__ import annotations

from typing import Any

import grpc

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1 import reward_service_pb2_grpc
from argosy.roles.reward import Reward
from argosy.rpc.codec.reward import capabilities_to_pb, item_from_pb, results_to_pb
from argosy.rpc.gate import Gate, remaining_s
from argosy.types.errors import InvalidInputError

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["RewardService"].full_name


class RewardServicer(reward_service_pb2_grpc.RewardServiceServicer):
    """Decodes, calls the core, encodes. See `argosy.rpc.interceptors`."""

    def __init__(self, core: Reward, gate: Gate) -> None:
        self._core = core
        self._gate = gate

    async def Score(self, request: pb.ScoreRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.ScoreResponse:
        """One outcome for each item."""
        self._gate.admit(request.context)
        limit = (await self._core.capabilities()).max_batch_size
        if len(request.items) > limit:
            raise InvalidInputError(
                f"{len(request.items)} items in one request, at most {limit} are taken", field="items"
            )
        items = [item_from_pb(item) for item in request.items]
        results = await self._core.score(items, deadline_s=remaining_s(request.context, context)) if items else []
        response = results_to_pb(results)
        response.context.CopyFrom(self._gate.respond())
        return response

    async def GetCapabilities(
        self, request: pb.GetCapabilitiesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetCapabilitiesResponse:
        """What the core can judge."""
        self._gate.admit(request.context)
        response = capabilities_to_pb(await self._core.capabilities())
        response.context.CopyFrom(self._gate.respond())
        return response


def add_to_server(core: Reward, server: grpc.aio.Server, gate: Gate) -> list[str]:
    """Register the service; returns its full name."""
    reward_service_pb2_grpc.add_RewardServiceServicer_to_server(RewardServicer(core, gate), server)
    return [SERVICE_NAME]
