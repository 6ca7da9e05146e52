"""ControllerService over a running controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from argosy.api.common.v1 import context_pb2
from argosy.api.controller.v1 import controller_service_pb2 as pb
from argosy.api.controller.v1 import controller_service_pb2_grpc
from argosy.roles.controller import RunController
from argosy.rpc.codec.controller import member_to_pb, run_to_pb, scale_change_to_pb, server_count_from_pb
from argosy.rpc.gate import Gate
from argosy.types.errors import NotFoundError
from argosy.types.records import Mutation, RunStatus

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name

_Call = grpc.aio.ServicerContext
Response = TypeVar("Response", pb.PauseRunResponse, pb.ResumeRunResponse, pb.StopRunResponse)


class ControllerServicer(controller_service_pb2_grpc.ControllerServiceServicer):
    """Decodes, calls the controller, encodes. See `argosy.rpc.interceptors`."""

    def __init__(self, controller: RunController, gate: Gate) -> None:
        self._controller = controller
        self._gate = gate

    async def GetRun(self, request: pb.GetRunRequest, context: _Call[Any, Any]) -> pb.GetRunResponse:
        """The run as it is now."""
        run = await self._run_of(request.context)
        return pb.GetRunResponse(context=self._gate.respond(run.version), run=run_to_pb(run))

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: _Call[Any, Any]
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """The run, again at each change."""
        run = await self._run_of(request.context)
        echo: context_pb2.ResponseContext | None = self._gate.respond(run.version)
        async for state in self._controller.watch_run():
            yield pb.WatchRunResponse(context=echo, run=run_to_pb(state))
            echo = None

    async def ListMembers(self, request: pb.ListMembersRequest, context: _Call[Any, Any]) -> pb.ListMembersResponse:
        """The members of the fleet."""
        members = await self._controller.list_members(request.role)
        return pb.ListMembersResponse(context=self._gate.respond(), members=map(member_to_pb, members))

    async def PauseRun(self, request: pb.PauseRunRequest, context: _Call[Any, Any]) -> pb.PauseRunResponse:
        """Note a pause."""
        return await self._steer("PauseRun", request.context, context, self._controller.pause, pb.PauseRunResponse)

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: _Call[Any, Any]) -> pb.ResumeRunResponse:
        """Go on."""
        return await self._steer("ResumeRun", request.context, context, self._controller.resume, pb.ResumeRunResponse)

    async def StopRun(self, request: pb.StopRunRequest, context: _Call[Any, Any]) -> pb.StopRunResponse:
        """Note the end."""

        async def stop() -> RunStatus:
            return await self._controller.stop(request.reason)

        return await self._steer("StopRun", request.context, context, stop, pb.StopRunResponse)

    async def ScaleRun(self, request: pb.ScaleRunRequest, context: _Call[Any, Any]) -> pb.ScaleRunResponse:
        """Start or drain servers."""
        await self._run_of(request.context)
        wanted = [server_count_from_pb(one) for one in request.wanted]

        async def work(ctx: Mutation) -> pb.ScaleRunResponse:
            changes = await self._controller.scale(wanted)
            return pb.ScaleRunResponse(context=self._gate.respond(), changes=map(scale_change_to_pb, changes))

        return await self._gate.mutate("ScaleRun", request.context, context, work, fenced=False)

    async def _steer(
        self,
        method: str,
        request_context: context_pb2.RequestContext,
        call: _Call[Any, Any],
        act: Callable[[], Awaitable[RunStatus]],
        response: type[Response],
    ) -> Response:
        await self._run_of(request_context)

        async def work(ctx: Mutation) -> Response:
            run = await act()
            return response(context=self._gate.respond(run.version), run=run_to_pb(run))

        return await self._gate.mutate(method, request_context, call, work, fenced=False)

    async def _run_of(self, request_context: context_pb2.RequestContext) -> RunStatus:
        run = await self._controller.get_run()
        if request_context.run_id not in ("", run.run_id):
            raise NotFoundError(f"this controller leads run {run.run_id!r}, not {request_context.run_id!r}")
        return run


def add_to_server(controller: RunController, server: grpc.aio.Server, gate: Gate) -> list[str]:
    """Register the service; returns its full name."""
    controller_service_pb2_grpc.add_ControllerServiceServicer_to_server(ControllerServicer(controller, gate), server)
    return [SERVICE_NAME]
