"""TrainerService and WeightsService over a training core: decode, call the core, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from argosy.api.common.v1.context_pb2 import ResponseContext
from argosy.api.trainer.v1 import trainer_service_pb2 as pb
from argosy.api.trainer.v1 import trainer_service_pb2_grpc
from argosy.roles.policy import TrainingCore
from argosy.rpc import weights_service
from argosy.rpc.chunking import batch_parts, collect_batch, only, read_start
from argosy.rpc.codec.common import manifest_to_pb, offer_to_pb
from argosy.rpc.codec.trainer import (
    loss_config_from_pb,
    normalizer_from_pb,
    step_result_to_pb,
    trainer_status_to_pb,
    update_config_from_pb,
    weights_form_from_pb,
)
from argosy.rpc.gate import Gate, remaining_s
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ArgosyError, InvalidInputError
from argosy.types.records import Mutation, StepResult

NAME = pb.DESCRIPTOR.services_by_name["TrainerService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class TrainerServicer(trainer_service_pb2_grpc.TrainerServiceServicer):
    """Thin: the core does the work and checks expected_step; the gate fences and remembers answers (case F15)."""

    def __init__(self, core: TrainingCore, gate: Gate) -> None:
        self._core = core
        self._gate = gate

    async def ForwardBackward(
        self, request_iterator: AsyncIterator[pb.ForwardBackwardRequest], context: Context
    ) -> pb.ForwardBackwardResponse:
        """See the proto."""
        start, parts = await read_start(request_iterator)
        loss, normalizer = loss_config_from_pb(start.loss), normalizer_from_pb(start.normalizer)

        async def work(ctx: Mutation, batch: TrajectoryBatch) -> pb.ForwardBackwardResponse:
            try:
                result = await self._core.forward_backward(batch, loss, normalizer, ctx)
            except ArgosyError:
                # The core has dropped all gradients that wait: those of stored answers are gone too.
                self._gate.forget(ctx.run_id)
                raise
            return pb.ForwardBackwardResponse(context=await self._respond(), result=step_result_to_pb(result))

        return await self._gate.mutate_upload(
            "ForwardBackward", start.context, context, lambda: collect_batch(parts), work
        )

    async def OptimStep(self, request: pb.OptimStepRequest, context: Context) -> pb.OptimStepResponse:
        """See the proto."""

        async def work(ctx: Mutation) -> pb.OptimStepResponse:
            result: StepResult = await self._core.optim_step(ctx)
            return pb.OptimStepResponse(context=await self._respond(), result=step_result_to_pb(result))

        return await self._gate.mutate("OptimStep", request.context, context, work)

    async def Update(self, request_iterator: AsyncIterator[pb.UpdateRequest], context: Context) -> pb.UpdateResponse:
        """See the proto."""
        start, parts = await read_start(request_iterator)
        config = update_config_from_pb(start.config)

        async def work(ctx: Mutation, batch: TrajectoryBatch) -> pb.UpdateResponse:
            result = await self._core.update(batch, config, ctx)
            return pb.UpdateResponse(context=await self._respond(), result=step_result_to_pb(result))

        return await self._gate.mutate_upload("Update", start.context, context, lambda: collect_batch(parts), work)

    async def ComputeLogProbs(
        self, request_iterator: AsyncIterator[pb.ComputeLogProbsRequest], context: Context
    ) -> AsyncIterator[pb.ComputeLogProbsResponse]:
        """See the proto."""
        start, parts = await read_start(request_iterator)
        self._gate.admit(start.context)
        batch = await collect_batch(parts)
        columns = tuple(start.columns)
        answer = await self._core.compute_log_probs(
            batch,
            columns,
            temperature=start.temperature if start.HasField("temperature") else 1.0,
            deadline_s=remaining_s(start.context, context),
        )
        respond: ResponseContext | None = await self._respond()
        for part in batch_parts(only(answer, "response_ids", *columns)):
            yield pb.ComputeLogProbsResponse(context=respond, payload=part)
            respond = None

    async def ComputeValues(
        self, request_iterator: AsyncIterator[pb.ComputeValuesRequest], context: Context
    ) -> AsyncIterator[pb.ComputeValuesResponse]:
        """See the proto."""
        start, parts = await read_start(request_iterator)
        self._gate.admit(start.context)
        batch = await collect_batch(parts)
        answer = await self._core.compute_values(batch, deadline_s=remaining_s(start.context, context))
        respond: ResponseContext | None = await self._respond()
        for part in batch_parts(only(answer, "response_ids", "values")):
            yield pb.ComputeValuesResponse(context=respond, payload=part)
            respond = None

    async def SaveCheckpoint(self, request: pb.SaveCheckpointRequest, context: Context) -> pb.SaveCheckpointResponse:
        """See the proto."""
        path = _path(request)

        async def work(ctx: Mutation) -> pb.SaveCheckpointResponse:
            files = await self._core.save_checkpoint(path, ctx, background=request.background)
            return pb.SaveCheckpointResponse(context=await self._respond(), files=files)

        return await self._gate.mutate("SaveCheckpoint", request.context, context, work)

    async def FinishSave(self, request: pb.FinishSaveRequest, context: Context) -> pb.FinishSaveResponse:
        """See the proto."""
        self._gate.admit(request.context)
        files = await self._core.finish_save(_path(request), deadline_s=remaining_s(request.context, context))
        return pb.FinishSaveResponse(context=await self._respond(), files=files)

    async def LoadCheckpoint(self, request: pb.LoadCheckpointRequest, context: Context) -> pb.LoadCheckpointResponse:
        """See the proto."""
        path = _path(request)

        async def work(ctx: Mutation) -> pb.LoadCheckpointResponse:
            status = await self._core.load_checkpoint(path, ctx)
            return pb.LoadCheckpointResponse(context=await self._respond(), status=trainer_status_to_pb(status))

        # After a restore the same steps are rightly done again: stored answers would hide that.
        return await self._gate.mutate("LoadCheckpoint", request.context, context, work, resets=True)

    async def ExportModel(self, request: pb.ExportModelRequest, context: Context) -> pb.ExportModelResponse:
        """See the proto."""
        path = _path(request)

        async def work(ctx: Mutation) -> pb.ExportModelResponse:
            files = await self._core.export_hf(path, ctx)
            return pb.ExportModelResponse(context=await self._respond(), files=files)

        return await self._gate.mutate("ExportModel", request.context, context, work)

    async def Offload(self, request: pb.OffloadRequest, context: Context) -> pb.OffloadResponse:
        """See the proto."""

        async def work(ctx: Mutation) -> pb.OffloadResponse:
            await self._core.offload(ctx)
            return pb.OffloadResponse(context=await self._respond())

        return await self._gate.mutate("Offload", request.context, context, work)

    async def PublishWeights(self, request: pb.PublishWeightsRequest, context: Context) -> pb.PublishWeightsResponse:
        """See the proto."""
        if not request.lineage:
            raise InvalidInputError("lineage is empty: a version needs a line of descent", field="lineage")

        async def work(ctx: Mutation) -> pb.PublishWeightsResponse:
            manifest = await self._core.publish_weights(
                request.lineage, request.step, ctx, form=weights_form_from_pb(request.form)
            )
            return pb.PublishWeightsResponse(
                context=self._gate.respond(manifest.version), manifest=manifest_to_pb(manifest)
            )

        return await self._gate.mutate("PublishWeights", request.context, context, work)

    async def OpenTransfer(self, request: pb.OpenTransferRequest, context: Context) -> pb.OpenTransferResponse:
        """See the proto."""

        async def work(ctx: Mutation) -> pb.OpenTransferResponse:
            offers = await self._core.open_transfer(request.transport, request.sync_id, request.receiver_count, ctx)
            return pb.OpenTransferResponse(
                context=await self._respond(), offers=[offer_to_pb(offer) for offer in offers]
            )

        return await self._gate.mutate("OpenTransfer", request.context, context, work)

    async def CloseTransfer(self, request: pb.CloseTransferRequest, context: Context) -> pb.CloseTransferResponse:
        """See the proto."""

        async def work(ctx: Mutation) -> pb.CloseTransferResponse:
            await self._core.close_transfer(request.sync_id, ctx)
            return pb.CloseTransferResponse(context=await self._respond())

        return await self._gate.mutate("CloseTransfer", request.context, context, work)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """See the proto."""
        self._gate.admit(request.context)
        status = await self._core.status()
        return pb.GetStatusResponse(context=self._gate.respond(status.version), status=trainer_status_to_pb(status))

    async def _respond(self) -> ResponseContext:
        return self._gate.respond((await self._core.status()).version)


_WithPath = pb.SaveCheckpointRequest | pb.FinishSaveRequest | pb.LoadCheckpointRequest | pb.ExportModelRequest


def _path(request: _WithPath) -> str:
    if not request.path:
        raise InvalidInputError("path is empty: which folder?", field="path")
    return request.path


def add_to_server(core: TrainingCore, server: grpc.aio.Server, gate: Gate) -> list[str]:
    """Serve a training core, and the weights that it publishes; returns the full service names."""
    trainer_service_pb2_grpc.add_TrainerServiceServicer_to_server(TrainerServicer(core, gate), server)
    return [NAME, *weights_service.add_to_server(core.weight_source(), server, gate)]
