"""The gate of a server process: fencing by term, and mutations that are done once.

How a servicer uses it: `argosy.rpc.interceptors`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message

from argosy.api.common.v1 import context_pb2
from argosy.rpc.codec.common import duration_from_pb, mutation_from_pb, version_to_pb
from argosy.types.errors import DeadlineError, FencedError, InvalidInputError, OverloadedError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Mutation

Response = TypeVar("Response", bound=Message)
Upload = TypeVar("Upload")

_MAX_RUNS = 64
"""Runs whose term is remembered; a server rarely sees more than one."""
_DEFAULT_DEADLINE_S = 3600.0
"""For a call that came with no deadline at all."""


def remaining_s(context: context_pb2.RequestContext, call: grpc.aio.ServicerContext[Any, Any]) -> float:
    """Seconds that a handler has: until the call's deadline or the context's. DeadlineError if none are left."""
    left_s: float | None = call.time_remaining()
    if left_s is None:
        left_s = _DEFAULT_DEADLINE_S
    if context.HasField("deadline"):
        left_s = min(left_s, duration_from_pb(context.deadline))
    if left_s <= 0:
        raise DeadlineError(f"the deadline had passed when the call came ({context.request_id or 'a read'})")
    return left_s


class Terms:
    """The highest term seen for each run."""

    def __init__(self) -> None:
        self._terms: OrderedDict[str, int] = OrderedDict()

    def current(self, run_id: str) -> int:
        """The highest term seen; 0 before the first."""
        return self._terms.get(run_id, 0)

    def adopt(self, run_id: str, term: int) -> bool:
        """Note a term; tells whether it was higher than the one known. FencedError if it is lower."""
        known = self.current(run_id)
        if term < known:
            raise FencedError(
                f"term {term} of run {run_id!r} is over: term {known} leads now; this controller must step down",
                run_id=run_id,
                term=str(term),
                current_term=str(known),
            )
        self._terms[run_id] = term
        self._terms.move_to_end(run_id)
        while len(self._terms) > _MAX_RUNS:
            self._terms.popitem(last=False)
        return term > known


class Answers:
    """First answers by request, the oldest forgotten first; bounded by count and by bytes."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._answers: OrderedDict[tuple[Any, ...], tuple[Message, int]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: tuple[Any, ...]) -> Message | None:
        """The stored answer, now the last to be forgotten."""
        if key not in self._answers:
            return None
        self._answers.move_to_end(key)
        return self._answers[key][0]

    def put(self, key: tuple[Any, ...], answer: Message) -> None:
        """Store a first answer. One that is over the byte bound by itself is not kept."""
        size_bytes = answer.ByteSize()
        if size_bytes > self._max_bytes or key in self._answers:
            return
        self._answers[key] = (answer, size_bytes)
        self._size_bytes += size_bytes
        while len(self._answers) > self._max_count or self._size_bytes > self._max_bytes:
            self._size_bytes -= self._answers.popitem(last=False)[1][1]

    def forget(self, run_id: str) -> None:
        """Drop the answers of a run."""
        for key in [key for key in self._answers if key[0] == run_id]:
            self._size_bytes -= self._answers.pop(key)[1]


class Gate:
    """One per server process."""

    def __init__(
        self,
        member_id: str = "",
        *,
        max_answers: int = 256,
        max_answer_bytes: int = 64 << 20,
        max_in_flight: int = 64,
    ) -> None:
        self.member_id = member_id
        self.terms = Terms()
        self._answers = Answers(max_answers, max_answer_bytes)
        self._max_in_flight = max_in_flight
        self._in_flight: dict[tuple[Any, ...], asyncio.Task[Message]] = {}

    def respond(self, version: PolicyVersion | None = None) -> context_pb2.ResponseContext:
        """What every response echoes: the member, and the policy version that it holds."""
        return context_pb2.ResponseContext(
            member_id=self.member_id, version=None if version is None else version_to_pb(version)
        )

    def admit(self, context: context_pb2.RequestContext) -> None:
        """Let a read pass, unless its sender names a run and a term that is over (FencedError). Term 0 is nobody's."""
        if context.run_id and context.term > 0:
            self._adopt(context.run_id, context.term)

    async def mutate(
        self,
        method: str,
        context: context_pb2.RequestContext,
        call: grpc.aio.ServicerContext[Any, Any],
        work: Callable[[Mutation], Awaitable[Response]],
        *,
        resets: bool = False,
        fenced: bool = True,
    ) -> Response:
        """Do a mutation once for its (run, term, method, request id, expected step), whoever still waits for it.

        `resets` drops the run's stored answers when the work is done; `fenced=False` is for calls that people send to a
        leader (ControllerService), whatever their term. Raises InvalidInputError without run or request
        id, FencedError, OverloadedError when too many are in flight, and what the work raises.
        """
        ctx = self._admit_mutation(context, call, fenced=fenced)
        key = _key(method, ctx)
        answer = await self._known(key)
        if answer is None:
            answer = await self._once(key, ctx, lambda: work(ctx), resets)
        return cast("Response", answer)

    async def mutate_upload(
        self,
        method: str,
        context: context_pb2.RequestContext,
        call: grpc.aio.ServicerContext[Any, Any],
        receive: Callable[[], Awaitable[Upload]],
        work: Callable[[Mutation, Upload], Awaitable[Response]],
    ) -> Response:
        """As `mutate`, with an upload that is read before the work begins, and only if there is work to do."""
        ctx = self._admit_mutation(context, call)
        key = _key(method, ctx)
        answer = await self._known(key)
        if answer is None:
            upload = await receive()
            self._adopt(ctx.run_id, ctx.term)  # the upload took time: another leader may have come
            answer = await self._known(key)
            if answer is None:
                answer = await self._once(key, ctx, lambda: work(ctx, upload), resets=False)
        return cast("Response", answer)

    def forget(self, run_id: str) -> None:
        """Drop a run's stored answers: something that they tell is no longer true."""
        self._answers.forget(run_id)

    async def drain(self, timeout_s: float) -> None:
        """Wait for the mutations in flight, also those whose clients went away; cancel what is not done by then."""
        tasks = list(self._in_flight.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()

    def _admit_mutation(
        self, context: context_pb2.RequestContext, call: grpc.aio.ServicerContext[Any, Any], *, fenced: bool = True
    ) -> Mutation:
        for field in ("run_id", "request_id"):
            if not getattr(context, field):
                raise InvalidInputError(f"context.{field} is empty: a mutation needs it", field=f"context.{field}")
        ctx = mutation_from_pb(context, remaining_s(context, call))
        if fenced:
            self._adopt(ctx.run_id, ctx.term)
        return ctx

    def _adopt(self, run_id: str, term: int) -> None:
        if self.terms.adopt(run_id, term):
            self._answers.forget(run_id)

    async def _known(self, key: tuple[Any, ...]) -> Message | None:
        """The first answer if there is one, or once the work in flight has it."""
        if key in self._in_flight:
            return await asyncio.shield(self._in_flight[key])
        return self._answers.get(key)

    async def _once(
        self, key: tuple[Any, ...], ctx: Mutation, work: Callable[[], Awaitable[Message]], resets: bool
    ) -> Message:
        if len(self._in_flight) >= self._max_in_flight:
            raise OverloadedError(f"{len(self._in_flight)} mutations are in flight, the most this server takes")
        task = asyncio.ensure_future(self._run(key, ctx, work, resets))
        self._in_flight[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))
        # Shielded: a handler is cancelled when its client goes away, but what has begun is finished once and its
        # answer kept for the client's next try (case F15).
        return await asyncio.shield(task)

    async def _run(
        self, key: tuple[Any, ...], ctx: Mutation, work: Callable[[], Awaitable[Message]], resets: bool
    ) -> Message:
        answer = await work()
        if resets:
            self._answers.forget(ctx.run_id)
        if ctx.term >= self.terms.current(ctx.run_id):  # else another leader has come: nobody may ask for it again
            self._answers.put(key, answer)
        return answer

    def _finished(self, key: tuple[Any, ...], task: asyncio.Task[Message]) -> None:
        del self._in_flight[key]
        if not task.cancelled():
            task.exception()  # seen here: nobody may be waiting for it any more


def _key(method: str, ctx: Mutation) -> tuple[Any, ...]:
    return (ctx.run_id, ctx.term, method, ctx.request_id, ctx.expected_step)
