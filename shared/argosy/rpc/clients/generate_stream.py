"""One Generate stream, shared by all concurrent `generate()` calls of a client.

    generate() ─ Batch ─┐                      ┌─ runs, finished, refused
    generate() ─ Batch ─┼─► GenerateStream ◄──►│  the server
    generate() ─ Batch ─┘   (one iterator that └─
                             gRPC reads, one
                             reader task)

A Batch gathers the token runs of its samples as they come, so that it has a partial answer for each of them when the
server dies. Memory is bounded by the samples that the callers themselves have in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import grpc

from argosy.api.rollout.v1 import generate_pb2 as pb
from argosy.rpc.codec.common import duration_to_pb, read_context_to_pb
from argosy.rpc.codec.rollout import (
    finish_reason_from_pb,
    generated_from_pb,
    key_from_pb,
    key_to_pb,
    refusal_from_pb,
    sample_request_to_pb,
)
from argosy.rpc.errors import from_rpc_error
from argosy.types.errors import ArgosyError, CorruptDataError, InvalidInputError, UnavailableError
from argosy.types.records import (
    NO_LEADER,
    Completion,
    FinishReason,
    Generated,
    GenerateRequest,
    Leader,
    TokenRun,
    VersionRun,
)

MAX_ADD_BYTES = 2 << 20
"""Samples are put into messages of about this size; one larger sample goes alone."""
MAX_WAITING_ADDS = 16
"""Messages with samples that wait to be written; a caller with more waits itself."""


class Partial:
    """A sample in flight, with the tokens that have come."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.token_ids = list(request.generated.token_ids)
        self.log_probs = list(request.generated.log_probs)
        self.versions = list(request.generated.versions)
        self.sent = False
        """Whether the server may know of it."""
        self.refused = False

    def extend(self, offset: int, tokens: Generated) -> None:
        """Append a run. CorruptDataError if it doesn't begin where the last one ended."""
        count = len(tokens.token_ids)
        if offset != len(self.token_ids) or len(tokens.log_probs) != count:
            raise CorruptDataError(
                f"{self.request.key}: a run of {count} tokens with {len(tokens.log_probs)} log-probs came at {offset}, "
                f"expected at {len(self.token_ids)}"
            )
        if sum(run.token_count for run in tokens.versions) != count:
            raise CorruptDataError(f"{self.request.key}: the versions of a run do not cover its {count} tokens")
        self.token_ids.extend(tokens.token_ids)
        self.log_probs.extend(tokens.log_probs)
        for run in tokens.versions:
            self._add_version(run)

    def _add_version(self, run: VersionRun) -> None:
        if self.versions and self.versions[-1].version == run.version:
            run = VersionRun(run.version, self.versions.pop().token_count + run.token_count)
        self.versions.append(run)

    def completion(self, reason: FinishReason, member_id: str, **fields: Any) -> Completion:
        """What the sample has, as an answer."""
        return Completion(
            sample_id=self.request.sample_id,
            token_ids=tuple(self.token_ids),
            log_probs=tuple(self.log_probs),
            versions=tuple(self.versions),
            finish_reason=reason,
            purpose=self.request.purpose,
            member_id=member_id,
            **fields,
        )


class Batch:
    """The samples of one `generate()` call; `events` brings its completions, and at most one error, the last."""

    def __init__(self, requests: Sequence[GenerateRequest], on_run: Callable[[TokenRun], None] | None = None) -> None:
        self.waiting = {request.key: Partial(request) for request in requests}
        self.events: asyncio.Queue[Completion | ArgosyError] = asyncio.Queue()  # bounded by the requests
        self._on_run = on_run
        if len(self.waiting) != len(requests):
            raise InvalidInputError("a sample was asked for twice in one call", field="sample_id")

    def take(self, key: str, offset: int, tokens: Generated) -> None:
        """Append a run to its sample, and tell whoever watches."""
        partial = self.waiting[key]
        partial.extend(offset, tokens)
        if self._on_run is not None:
            request = partial.request
            run = TokenRun(
                request.sample_id, request.purpose, offset, tokens.token_ids, tokens.log_probs, tokens.versions
            )
            self._on_run(run)

    def fail(self, error: ArgosyError, member_id: str) -> None:
        """The server is lost: give out what each sample has, then the error."""
        for partial in self.waiting.values():
            self.events.put_nowait(partial.completion(FinishReason.FAILED, member_id, error=error.message))
        self.waiting.clear()
        self.events.put_nowait(error)


class GenerateStream:
    """One life of the stream. When it breaks, every batch on it gets its partial answers and an error."""

    def __init__(
        self,
        open_call: Callable[
            [AsyncIterator[pb.GenerateRequest]], grpc.aio.StreamStreamCall[pb.GenerateRequest, pb.GenerateResponse]
        ],
        peer: str,
        on_end: Callable[[GenerateStream], None],
        leader: Leader = NO_LEADER,
    ) -> None:
        """`on_end` is told when the reader has ended; until then somebody must hold on to the stream. `leader` is who
        asks: the server refuses what comes after it has heard of a higher term."""
        self._peer = peer
        self._owners: dict[str, Batch] = {}
        self._leaving: set[str] = set()
        """Cancelled samples whose end the server has not told yet: their keys can't be used again before."""
        self._changed = asyncio.Event()
        self._outbox: deque[pb.GenerateRequest] = deque()
        if leader != NO_LEADER:
            self._outbox.append(pb.GenerateRequest(context=read_context_to_pb(run_id=leader.run_id, term=leader.term)))
        self._room = asyncio.Semaphore(MAX_WAITING_ADDS)
        self._wake = asyncio.Event()
        self._member_id = ""
        self.ended = False
        """No batch may join any more; one that was on its way when it became idle is still sent."""
        self._broken = False
        """Nothing comes any more: every batch has its error."""
        # Not by the call's `write`: with interceptors, as tracing has, gRPC makes an iterator of its own of what is
        # written, which waits for ever once the call has broken.
        self._call = open_call(_Requests(self._next_request))
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda _: on_end(self))

    async def add(self, batch: Batch, deadline_s: float) -> None:
        """Send a batch's requests. InvalidInputError if one of its keys is in flight on this stream already."""
        taken = [key for key in batch.waiting if key in self._owners]
        if taken:
            raise InvalidInputError(f"sample {taken[0]} is in flight on {self._peer} already", field="sample_id")
        samples = [sample_request_to_pb(partial.request) for partial in batch.waiting.values()]
        self._owners |= dict.fromkeys(batch.waiting, batch)
        while self._leaving & batch.waiting.keys() and not self._broken:
            self._changed.clear()
            await self._changed.wait()
        for group in _groups(samples):
            await self._room.acquire()
            if self._broken:  # meanwhile: the batch has its error already, and so have all who wait for room
                self._room.release()
                return
            for sample in group:
                batch.waiting[key_from_pb(sample.key)].sent = True
            self._send(pb.GenerateRequest(add=pb.AddSamples(samples=group, deadline=duration_to_pb(deadline_s))))

    def leave(self, batch: Batch) -> None:
        """Cancel what a batch still waits for. The stream is half-closed when nobody is left on it."""
        for key in [key for key, owner in self._owners.items() if owner is batch]:
            del self._owners[key]
        keys = [key for key, partial in batch.waiting.items() if partial.sent and not partial.refused]
        if keys and not self.ended:
            self._leaving.update(keys)
            if not (self._outbox and self._outbox[-1].HasField("cancel")):
                self._send(pb.GenerateRequest(cancel=pb.CancelSamples()))
            self._outbox[-1].cancel.keys.extend(key_to_pb(batch.waiting[key].request) for key in keys)
        self._close_if_idle()

    async def close(self) -> None:
        """End the stream at once; the batches on it get an UnavailableError."""
        self._call.cancel()
        await asyncio.wait([self._reader])

    def _close_if_idle(self) -> None:
        """An idle stream would hold up the server's graceful stop; opening another costs a millisecond."""
        if not self._owners and not self._leaving:
            self.ended = True
            self._wake.set()

    def _send(self, message: pb.GenerateRequest) -> None:
        self._outbox.append(message)
        self._wake.set()

    async def _next_request(self, last: pb.GenerateRequest | None) -> pb.GenerateRequest | None:
        """What is to be sent next, once `last` is; None at the end."""
        if last is not None and last.HasField("add"):
            self._room.release()
        while not self._broken:
            if self._outbox:
                return self._outbox.popleft()
            if self.ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        return None

    async def _read(self) -> None:
        error: ArgosyError = UnavailableError(f"{self._peer} ended the Generate stream with samples in flight")
        try:
            async for response in self._call:
                self._take(response)
                self._changed.set()
                self._close_if_idle()
        except grpc.aio.AioRpcError as broken:
            error = from_rpc_error(broken, peer=self._peer)
        except ArgosyError as nonsense:
            error = nonsense
        except asyncio.CancelledError:
            error = UnavailableError(f"the connection to {self._peer} was closed")
        finally:
            self.ended = self._broken = True
            self._changed.set()
            self._wake.set()  # nothing more is sent
            self._call.cancel()  # nothing happens if it has ended
            self._room.release()  # nobody writes any more: who waits for room goes on, one after the other
            owners, self._owners = set(self._owners.values()), {}
            for batch in owners:
                batch.fail(error, self._member_id)

    def _take(self, response: pb.GenerateResponse) -> None:
        self._member_id = response.context.member_id or self._member_id
        for run in response.runs:
            key = key_from_pb(run.key)
            if key in self._owners and key not in self._leaving:
                self._owners[key].take(key, run.offset, generated_from_pb(run.tokens))
        for end in response.finished:
            key = key_from_pb(end.key)
            if key in self._leaving:
                self._leaving.discard(key)
            elif key in self._owners:
                self._finish(self._owners[key], key, end)
        for refused in response.refused:
            self._refuse(refused)

    def _finish(self, batch: Batch, key: str, end: pb.FinishedSample) -> None:
        partial = batch.waiting[key]
        if end.token_count != len(partial.token_ids):
            raise CorruptDataError(f"{key}: {len(partial.token_ids)} tokens came, the server counts {end.token_count}")
        completion = partial.completion(
            finish_reason_from_pb(end.finish_reason),
            self._member_id,
            text=end.text,
            error=end.error,
            cached_prompt_tokens=end.cached_prompt_token_count,
        )
        del self._owners[key], batch.waiting[key]
        batch.events.put_nowait(completion)

    def _refuse(self, refused: pb.RefusedSamples) -> None:
        keys = {key_from_pb(key) for key in refused.keys}
        gone, keys = keys & self._leaving, keys - self._leaving
        self._leaving -= gone
        for key in keys & self._owners.keys():
            self._owners[key].waiting[key].refused = True
        for batch in {self._owners.pop(key) for key in keys & self._owners.keys()}:
            batch.events.put_nowait(refusal_from_pb(refused, self._peer))


class _Requests:
    """What gRPC reads. No generator: one that is left half-way is closed at a time of the garbage collector's."""

    def __init__(self, following: Callable[[pb.GenerateRequest | None], Awaitable[pb.GenerateRequest | None]]) -> None:
        self._following = following
        self._last: pb.GenerateRequest | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.GenerateRequest:
        self._last = await self._following(self._last)
        if self._last is None:
            raise StopAsyncIteration
        return self._last


def _groups(samples: Iterable[pb.SampleRequest]) -> Iterator[list[pb.SampleRequest]]:
    """Samples in groups of about MAX_ADD_BYTES, so that no message grows over the limit."""
    group: list[pb.SampleRequest] = []
    size_bytes = 0
    for sample in samples:
        if group and size_bytes + sample.ByteSize() > MAX_ADD_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(sample)
        size_bytes += sample.ByteSize()
    if group:
        yield group
