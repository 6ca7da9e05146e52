"""A trainer in another process: what the clients of a policy and of a critic share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from argosy.api.trainer.v1 import trainer_service_pb2 as pb
from argosy.api.trainer.v1.trainer_service_pb2_grpc import TrainerServiceStub
from argosy.rpc.channel import Caller
from argosy.rpc.chunking import batch_parts
from argosy.rpc.codec.common import mutation_to_pb, read_context_to_pb
from argosy.rpc.codec.trainer import (
    loss_config_to_pb,
    normalizer_to_pb,
    step_result_from_pb,
    trainer_status_from_pb,
    update_config_to_pb,
)
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import (
    GlobalNormalizer,
    LossConfig,
    Mutation,
    StepResult,
    TrainerStatus,
    UpdateConfig,
)

if TYPE_CHECKING:
    from argosy.api.common.v1.context_pb2 import RequestContext
    from argosy.api.trainer.v1.trainer_service_pb2_grpc import TrainerServiceAsyncStub

STATUS_DEADLINE_S = 10.0
"""For a status, all tries included."""


class TrainingClient:
    """Implements `argosy.roles.policy.Training` over gRPC. Every mutation is retried with its own request id."""

    def __init__(
        self,
        address: str,
        *,
        member_id: str = "trainer",
        options: RpcOptions | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.address = address
        self._caller = Caller(address, what=member_id, options=options, policy=policy)
        self._stub = cast("TrainerServiceAsyncStub", TrainerServiceStub(self._caller.channel))

    async def status(self) -> TrainerStatus:
        """As the role says."""
        response = await self._caller.unary(
            self._stub.GetStatus, lambda left_s: pb.GetStatusRequest(), deadline_s=STATUS_DEADLINE_S
        )
        return trainer_status_from_pb(response.status)

    async def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer, ctx: Mutation
    ) -> StepResult:
        """As the role says."""
        loss_message, normalizer_message = loss_config_to_pb(loss), normalizer_to_pb(normalizer)

        def messages(left_s: float) -> Iterator[pb.ForwardBackwardRequest]:
            start = pb.ForwardBackwardStart(
                context=context_to_pb(ctx, left_s), loss=loss_message, normalizer=normalizer_message
            )
            yield pb.ForwardBackwardRequest(start=start)
            for part in batch_parts(batch):
                yield pb.ForwardBackwardRequest(payload=part)

        response = await self._caller.upload(self._stub.ForwardBackward, messages, deadline_s=ctx.deadline_s)
        return step_result_from_pb(response.result)

    async def optim_step(self, ctx: Mutation) -> StepResult:
        """As the role says."""
        response = await self._caller.unary(
            self._stub.OptimStep,
            lambda left_s: pb.OptimStepRequest(context=context_to_pb(ctx, left_s)),
            deadline_s=ctx.deadline_s,
        )
        return step_result_from_pb(response.result)

    async def update(self, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> StepResult:
        """As the role says."""
        config_message = update_config_to_pb(config)

        def messages(left_s: float) -> Iterator[pb.UpdateRequest]:
            yield pb.UpdateRequest(start=pb.UpdateStart(context=context_to_pb(ctx, left_s), config=config_message))
            for part in batch_parts(batch):
                yield pb.UpdateRequest(payload=part)

        response = await self._caller.upload(self._stub.Update, messages, deadline_s=ctx.deadline_s)
        return step_result_from_pb(response.result)

    async def save_checkpoint(self, path: str, ctx: Mutation, *, background: bool = False) -> Sequence[str]:
        """As the role says; `path` is one of the trainer's machine."""
        response = await self._caller.unary(
            self._stub.SaveCheckpoint,
            lambda left_s: pb.SaveCheckpointRequest(
                context=context_to_pb(ctx, left_s), path=path, background=background
            ),
            deadline_s=ctx.deadline_s,
        )
        return list(response.files)

    async def finish_save(self, path: str, *, deadline_s: float) -> Sequence[str]:
        """As the role says; `path` is one of the trainer's machine."""
        response = await self._caller.unary(
            self._stub.FinishSave,
            lambda left_s: pb.FinishSaveRequest(context=read_context_to_pb(deadline_s=left_s), path=path),
            deadline_s=deadline_s,
        )
        return list(response.files)

    async def load_checkpoint(self, path: str, ctx: Mutation) -> TrainerStatus:
        """As the role says; `path` is one of the trainer's machine."""
        response = await self._caller.unary(
            self._stub.LoadCheckpoint,
            lambda left_s: pb.LoadCheckpointRequest(context=context_to_pb(ctx, left_s), path=path),
            deadline_s=ctx.deadline_s,
        )
        return trainer_status_from_pb(response.status)

    async def offload(self, ctx: Mutation) -> None:
        """As the role says."""
        await self._caller.unary(
            self._stub.Offload,
            lambda left_s: pb.OffloadRequest(context=context_to_pb(ctx, left_s)),
            deadline_s=ctx.deadline_s,
        )

    async def export_hf(self, path: str, ctx: Mutation) -> Sequence[str]:
        """As the role says; `path` is one of the trainer's machine."""
        response = await self._caller.unary(
            self._stub.ExportModel,
            lambda left_s: pb.ExportModelRequest(context=context_to_pb(ctx, left_s), path=path),
            deadline_s=ctx.deadline_s,
        )
        return list(response.files)

    async def close(self) -> None:
        """End what runs and the connection."""
        await self._caller.close()


def context_to_pb(ctx: Mutation, left_s: float) -> RequestContext:
    """A mutation's context, with the time that is left for it."""
    return mutation_to_pb(ctx, deadline_s=left_s)
