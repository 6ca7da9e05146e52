"""The client of a controller: what `argosy status` and its kin speak through."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc

from argosy.api.common.v1 import context_pb2
from argosy.api.controller.v1 import controller_service_pb2 as pb
from argosy.api.controller.v1.controller_service_pb2_grpc import ControllerServiceStub
from argosy.rpc.channel import Caller
from argosy.rpc.codec.common import mutation_to_pb, read_context_to_pb
from argosy.rpc.codec.controller import member_from_pb, run_from_pb, scale_change_from_pb, server_count_to_pb
from argosy.rpc.errors import from_rpc_error
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.types.records import Member, Mutation, RunStatus, ScaleChange, ServerCount

if TYPE_CHECKING:
    from argosy.api.controller.v1.controller_service_pb2_grpc import ControllerServiceAsyncStub


class ControllerClient:
    """Implements `argosy.roles.controller.RunController` over gRPC."""

    def __init__(
        self,
        address: str,
        *,
        deadline_s: float = 10.0,
        options: RpcOptions | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._caller = Caller(address, what="controller", options=options, policy=policy)
        self._stub = cast("ControllerServiceAsyncStub", ControllerServiceStub(self._caller.channel))
        self._deadline_s = deadline_s

    async def get_run(self) -> RunStatus:
        """The run as it is now."""
        response = await self._caller.unary(
            self._stub.GetRun,
            lambda left_s: pb.GetRunRequest(context=read_context_to_pb(deadline_s=left_s)),
            deadline_s=self._deadline_s,
        )
        return run_from_pb(response.run)

    async def watch_run(self) -> AsyncIterator[RunStatus]:
        """The run as it is now, then again each time it changes; UnavailableError when the controller goes away."""
        call = self._stub.WatchRun(pb.WatchRunRequest())
        try:
            async for response in call:
                yield run_from_pb(response.run)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=self._caller.what) from error
        finally:
            call.cancel()

    async def list_members(self, role: str = "") -> list[Member]:
        """The members of the fleet that the controller sees."""
        response = await self._caller.unary(
            self._stub.ListMembers,
            lambda left_s: pb.ListMembersRequest(context=read_context_to_pb(deadline_s=left_s), role=role),
            deadline_s=self._deadline_s,
        )
        return [member_from_pb(member) for member in response.members]

    async def pause(self) -> RunStatus:
        """Stand still after the step that the loop is in."""
        return await self._steer(self._stub.PauseRun, lambda context: pb.PauseRunRequest(context=context))

    async def resume(self) -> RunStatus:
        """Go on."""
        return await self._steer(self._stub.ResumeRun, lambda context: pb.ResumeRunRequest(context=context))

    async def stop(self, reason: str = "") -> RunStatus:
        """Save a checkpoint after the step that the loop is in, and end."""
        return await self._steer(self._stub.StopRun, lambda context: pb.StopRunRequest(context=context, reason=reason))

    async def scale(self, wanted: Sequence[ServerCount]) -> list[ScaleChange]:
        """Have servers started or drained. Raises InvalidInputError, StateError where that can't be."""
        counts = [server_count_to_pb(one) for one in wanted]
        response = await self._mutate(
            self._stub.ScaleRun, lambda context: pb.ScaleRunRequest(context=context, wanted=counts)
        )
        return [scale_change_from_pb(change) for change in response.changes]

    async def close(self) -> None:
        """End the running calls and close the connection."""
        await self._caller.close()

    async def _steer(
        self, method: Callable[..., Awaitable[Any]], request: Callable[[context_pb2.RequestContext], Any]
    ) -> RunStatus:
        return run_from_pb((await self._mutate(method, request)).run)

    async def _mutate(
        self, method: Callable[..., Awaitable[Any]], request: Callable[[context_pb2.RequestContext], Any]
    ) -> Any:
        """The response to a mutation of the run that the controller leads, done once however often it is sent."""
        run = await self.get_run()
        ctx = Mutation(run.run_id, 0, uuid.uuid4().hex, self._deadline_s)

        async def attempt(timeout_s: float, left_s: float) -> Any:
            return await method(request(mutation_to_pb(ctx, deadline_s=left_s)), timeout=timeout_s)

        return await self._caller.retry(attempt, deadline_s=self._deadline_s)
