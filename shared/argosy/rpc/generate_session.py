"""One Generate stream as the server sees it: what comes in is handed to the core, what the core tells goes out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol, cast

from argosy.api.common.v1 import context_pb2
from argosy.api.rollout.v1 import generate_pb2 as pb
from argosy.roles.rollout import Rollout
from argosy.roles.weights import WeightSource
from argosy.rpc.codec.common import duration_from_pb
from argosy.rpc.codec.rollout import FINISH_REASONS, generated_to_pb, key_from_pb, refusal_to_pb, sample_request_from_pb
from argosy.rpc.errors import as_argosy_error
from argosy.rpc.gate import Gate
from argosy.types.errors import InternalError, InvalidInputError, OverloadedError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, Generated, GenerateRequest, Mutation, TokenRun, versions_after

_LOG = logging.getLogger(__name__)

MAX_ADDS = 1024
"""AddSamples that one stream may have unfinished."""
MAX_RESPONSE_BYTES = 1 << 20
"""Messages are cut at about this size."""
ABORT_DEADLINE_S = 10.0


class ServedRollout(Rollout, Protocol):
    """What a rollout core offers to its servicer beyond the role, whatever its engine."""

    def generate_runs(
        self, requests: Sequence[GenerateRequest], *, deadline_s: float, interval_tokens: int | None = None
    ) -> AsyncIterator[TokenRun | Completion]:
        """As `generate`, and in between a TokenRun of each sample every `interval_tokens` (None: the core's own).

        Closing the iterator ends the samples that are unfinished.
        """
        ...

    def weight_source(self) -> WeightSource:
        """The weights that it holds, for a newcomer."""
        ...


class GenerateSession:
    """One client's stream. Memory is bounded by the samples that the core has taken in."""

    def __init__(self, core: ServedRollout, gate: Gate, stream_deadline_s: float, interval_tokens: int | None) -> None:
        self._core = core
        self._gate = gate
        self._stream_deadline_s = stream_deadline_s
        self._interval_tokens = interval_tokens
        self._works: set[asyncio.Task[None]] = set()
        self._in_flight: dict[str, int] = {}
        """Key → tokens of the sample that are told already."""
        self._told: deque[pb.TokenRun | pb.FinishedSample | pb.RefusedSamples] = deque()
        self._changed = asyncio.Event()
        self._version: PolicyVersion | None = None

    async def run(self, requests: AsyncIterator[pb.GenerateRequest]) -> AsyncIterator[pb.GenerateResponse]:
        """The responses, until the client has half-closed and everything it asked for has ended."""
        self._version = (await self._core.status()).version
        yield pb.GenerateResponse(context=self._gate.respond(self._version))
        reader = asyncio.create_task(self._read(requests))
        reader.add_done_callback(lambda _: self._changed.set())
        try:
            while not (reader.done() and not self._works and not self._told):
                await self._changed.wait()
                self._changed.clear()
                while self._told:
                    yield self._response()
                if reader.done():
                    reader.result()  # a malformed message ends the stream
        finally:
            reader.cancel()
            await self._end_all()

    async def _read(self, requests: AsyncIterator[pb.GenerateRequest]) -> None:
        context = context_pb2.RequestContext()
        async for request in requests:
            if request.HasField("context"):
                context = request.context  # of this message and of those after it: who asks is said once
            self._gate.admit(context)
            action = request.WhichOneof("action")
            if action == "add":
                work = asyncio.create_task(self._serve(request.add))
                self._works.add(work)
                work.add_done_callback(self._served)
                # The core has the samples before the next message is looked at, which may cancel them.
                await asyncio.sleep(0)
            elif action == "cancel":
                await self._abort([key for key in map(key_from_pb, request.cancel.keys) if key in self._in_flight])

    def _served(self, work: asyncio.Task[None]) -> None:
        self._works.discard(work)
        self._changed.set()

    async def _serve(self, add: pb.AddSamples) -> None:
        """Answer one AddSamples: each of its samples is finished or refused, exactly once."""
        unfinished = {key_from_pb(sample.key): sample.key for sample in add.samples}
        try:
            if len(self._works) > MAX_ADDS:
                raise OverloadedError(
                    f"this stream has {MAX_ADDS} unfinished requests, the most that a stream may have"
                )
            if len(unfinished) < len(add.samples):
                raise InvalidInputError("a sample is asked for twice in one message", field="sample_id")
            taken = [key for key in unfinished if key in self._in_flight]
            if taken:
                raise InvalidInputError(f"sample {taken[0]} is in flight on this stream already", field="sample_id")
            await self._generate(add, unfinished)
        except Exception as error:  # noqa: BLE001 - goes to the client as a refusal; the stream's other samples go on
            ours = as_argosy_error(error)
            if isinstance(ours, InternalError):
                _LOG.error("Generate failed for %d samples", len(unfinished), exc_info=error)
            if unfinished:
                self._tell(refusal_to_pb(list(unfinished.values()), ours))

    async def _generate(self, add: pb.AddSamples, unfinished: dict[str, pb.SampleKey]) -> None:
        requests = [sample_request_from_pb(sample) for sample in add.samples]
        deadline_s = duration_from_pb(add.deadline) if add.HasField("deadline") else self._stream_deadline_s
        self._in_flight |= {request.key: len(request.generated.token_ids) for request in requests}
        events = self._core.generate_runs(requests, deadline_s=deadline_s, interval_tokens=self._interval_tokens)
        try:
            async with contextlib.aclosing(cast("AsyncGenerator[TokenRun | Completion, None]", events)):
                async for event in events:
                    key = f"{event.purpose}:{event.sample_id}"
                    if isinstance(event, Completion):
                        self._finish(event, key, unfinished.pop(key))
                    else:
                        run = Generated(event.token_ids, event.log_probs, event.versions)
                        self._tell_run(key, unfinished[key], event.offset, run)
        finally:
            for key in unfinished:
                self._in_flight.pop(key, None)

    def _tell_run(self, key: str, key_message: pb.SampleKey, offset: int, tokens: Generated) -> None:
        if tokens.token_ids:
            self._in_flight[key] = offset + len(tokens.token_ids)
            self._tell(pb.TokenRun(key=key_message, offset=offset, tokens=generated_to_pb(tokens)))

    def _finish(self, completion: Completion, key: str, key_message: pb.SampleKey) -> None:
        told = self._in_flight[key]
        rest = Generated(
            completion.token_ids[told:],
            completion.log_probs[told:],
            versions_after(completion.versions, told),
        )
        self._tell_run(key, key_message, told, rest)
        del self._in_flight[key]
        self._tell(
            pb.FinishedSample(
                key=key_message,
                finish_reason=FINISH_REASONS[completion.finish_reason],
                token_count=len(completion.token_ids),
                text=completion.text,
                error=completion.error,
                cached_prompt_token_count=completion.cached_prompt_tokens,
            )
        )
        if completion.versions:
            self._version = completion.versions[-1].version

    def _tell(self, part: pb.TokenRun | pb.FinishedSample | pb.RefusedSamples) -> None:
        self._told.append(part)
        self._changed.set()

    def _response(self) -> pb.GenerateResponse:
        """What there is to tell, cut at MAX_RESPONSE_BYTES, runs before the ends that count on them."""
        response = pb.GenerateResponse(context=self._gate.respond(self._version))
        size_bytes = 0
        while self._told and size_bytes < MAX_RESPONSE_BYTES:
            part = self._told.popleft()
            size_bytes += part.ByteSize()
            if isinstance(part, pb.TokenRun):
                response.runs.append(part)
            elif isinstance(part, pb.FinishedSample):
                response.finished.append(part)
            else:
                response.refused.append(part)
        return response

    async def _abort(self, keys: Sequence[str]) -> None:
        if keys:
            # Of this server's own making: no leader stands behind it, and nobody repeats it.
            await self._core.abort(keys, Mutation("", 0, uuid.uuid4().hex, ABORT_DEADLINE_S))

    async def _end_all(self) -> None:
        """The stream has ended: so do all its samples."""
        works = list(self._works)
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)
