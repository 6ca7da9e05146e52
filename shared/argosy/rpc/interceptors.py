"""What stands between the wire and a servicer, so that servicers only decode, call their core and encode.

For authors of a `service.py`. Every server (`argosy.rpc.server.RpcServer`) has the `ErrorInterceptor`, so a servicer
**just raises**: an ArgosyError becomes its status with ErrorInfo, anything else INTERNAL with type and text, logged
with its traceback, and the span of the call is marked as failed. Never call `context.abort`. Deadlines and
cancellation reach a handler as `asyncio.CancelledError`: let it pass.

The process has one `Gate` (`argosy.rpc.gate`), which the host makes and hands to each
`add_to_server(core, server, gate)`. There are three kinds of calls:

**Reads** (GetStatus, Score, ComputeLogProbs …): `gate.admit(request.context)` refuses a fenced sender; then do the work
in the handler itself, so that it is cancelled when the client goes away::

    async def GetStatus(self, request, context):
        self._gate.admit(request.context)
        status = await self._core.status()
        return pb.GetStatusResponse(context=self._gate.respond(status.version), ...)

**Mutations with one request message**: hand the work to `gate.mutate`. It checks run, term and request id, returns the
first answer to a repeat, lets a concurrent repeat wait for the first, and finishes the work once even if the client
goes away (case F15). The work gets a `Mutation` record, ready for the core::

    async def OptimStep(self, request, context):
        async def work(ctx: Mutation) -> pb.OptimStepResponse:
            result = await self._core.optim_step(ctx)
            return pb.OptimStepResponse(context=self._gate.respond(version), result=step_result_to_pb(result))

        return await self._gate.mutate("OptimStep", request.context, context, work)

**Mutations with a chunked upload** (`stream {start, payload}`): `read_start` takes the first message,
`gate.mutate_upload` reads the rest inside the handler (a client that goes away while it uploads changes nothing), then
works as above::

    async def Update(self, request_iterator, context):
        start, parts = await read_start(request_iterator)     # argosy.rpc.chunking

        async def work(ctx: Mutation, batch: TrajectoryBatch) -> pb.UpdateResponse: ...

        return await self._gate.mutate_upload(
            "Update", start.context, context, lambda: collect_batch(parts), work
        )

Only successes are stored: after an error the same request id may be tried again. `resets=True` (LoadCheckpoint) drops
the stored answers of the run, since after a restore the same steps are rightly done again; so does a higher term.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message
from opentelemetry import trace

from argosy.rpc.errors import as_argosy_error, to_status
from argosy.types.errors import InternalError, MessageTooLargeError

_LOG = logging.getLogger(__name__)

if TYPE_CHECKING:  # generic in its types only
    _Handler = grpc.RpcMethodHandler[Any, Any]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into status + ErrorInfo, and refuses to send a response over the message limit."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Wrap the handler that would serve the call, whichever of the four kinds it is."""
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: grpc answers UNIMPLEMENTED
            return None
        method = handler_call_details.method.rpartition("/")[2]
        codecs = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(method, handler.stream_stream), **codecs)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._unary(method, handler.stream_unary), **codecs)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(method, handler.unary_stream), **codecs)
        return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary), **codecs)

    def _unary(self, method: str, behavior: Any) -> Any:
        async def wrapped(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                response = await behavior(request, context)
                self._check_size(method, response)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 - the choke point: everything becomes a status here
                await _abort(method, context, error)
            return response

        return wrapped

    def _stream(self, method: str, behavior: Any) -> Any:
        async def wrapped(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            try:
                async for response in behavior(request, context):
                    self._check_size(method, response)
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 - the choke point: everything becomes a status here
                await _abort(method, context, error)

        return wrapped

    def _check_size(self, method: str, response: object) -> None:
        if isinstance(response, Message):
            check_message_size(f"the response of {method}", response, self._max_message_bytes)


def check_message_size(what: str, message: Message, limit_bytes: int) -> None:
    """Raise MessageTooLargeError, naming the limit, before a message over it is sent (case F1)."""
    size_bytes = message.ByteSize()
    if size_bytes > limit_bytes:
        raise MessageTooLargeError(
            f"{what} has {size_bytes} bytes, over the message limit of {limit_bytes} bytes: "
            "send fewer items at once, or raise argosy.rpc.max_message_bytes on both sides",
            size_bytes=str(size_bytes),
            limit_bytes=str(limit_bytes),
        )


async def _abort(method: str, context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    ours = as_argosy_error(error)
    if isinstance(ours, InternalError):
        _LOG.error("%s failed: %s", method, ours.message, exc_info=error)
    else:
        _LOG.info("%s refused: %s: %s", method, type(ours).__name__, ours.message)
    span = trace.get_current_span()
    span.record_exception(error)
    span.set_status(trace.Status(trace.StatusCode.ERROR, f"{type(ours).__name__}: {ours.message}"))
    status = to_status(ours)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    # abort, not abort_with_status: the telemetry interceptor watches the former only.
    await context.abort(code, status.message, details)
