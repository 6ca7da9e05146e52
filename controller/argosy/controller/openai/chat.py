"""POST /v1/chat/completions: a JSON answer, or a stream of events. A client that leaves ends its samples."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, nullcontext
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from argosy.controller.context import RunContext
from argosy.controller.openai.answers import DONE, Reply, log_probs_of, sse
from argosy.controller.openai.calls import Caller
from argosy.controller.openai.desk import SessionDesk
from argosy.controller.openai.errors import ApiError, bad_request, from_argosy
from argosy.controller.openai.guards import GROUP_HEADER, Intake, Places, session_of
from argosy.controller.openai.parameters import ChatCall, parse_json, read_call
from argosy.controller.openai.sessions import Session, task_key
from argosy.controller.openai.streaming import TextStream
from argosy.types.errors import ArgosyError

log = logging.getLogger(__name__)


class ChatEndpoint:
    """Answers calls one by one.

    Args:
        ctx: The run.
        caller: Generates.
        desk: Sessions; None where the run doesn't train on them.
        intake: Reads bodies.
        waiting: Places of clients that wait for a session.
    """

    def __init__(
        self, ctx: RunContext, caller: Caller, desk: SessionDesk | None, intake: Intake, waiting: Places
    ) -> None:
        self._ctx = ctx
        self._options = ctx.config.argosy.openai
        self._caller = caller
        self._desk = desk
        self._intake = intake
        self._waiting = waiting
        self.places = Places(self._options.max_concurrency, "calls are running", "argosy.openai.max_concurrency")

    async def __call__(self, request: Request) -> Response:
        """One call."""
        session_id = session_of(request)
        call = read_call(parse_json(await self._intake.read(request, self._intake.largest_bytes)))
        self._caller.check(call, in_session=bool(session_id))
        session = await while_connected(request, self._session(request, session_id, call))
        self._ctx.count("openai/calls")
        if call.stream:
            return _Events(self._events(call, session), self._options.deadline_s, self.places)
        with self.places.take():
            reply = await while_connected(
                request, self._in_time(self._caller.answer(call, session, self._caller.head(session)))
            )
        decode = self._caller.decode
        self._account(reply)
        body = reply.body(
            lambda ids: decode(ids, skip_special_tokens=False), logprobs=call.logprobs, token_ids=call.return_token_ids
        )
        return JSONResponse(body)

    async def _session(self, request: Request, session_id: str, call: ChatCall) -> Session | None:
        if not session_id:
            return None
        if self._desk is None:
            raise bad_request(
                f"session {session_id!r}: this run does not train on sessions; leave it out, or start the run with "
                "argosy.openai.source=sessions"
            )
        group = request.headers.get(GROUP_HEADER)
        key = f"group:{group}" if group else task_key(call.messages, call.tools)
        # A call of a session that has begun waits for nothing, and needs no place among those that do.
        with nullcontext() if self._desk.has_begun(session_id) else self._waiting.take():
            return (await self._desk.for_call(session_id, key, self._options.deadline_s)).session

    async def _in_time(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        try:
            async with asyncio.timeout(self._options.deadline_s):
                return await work
        except TimeoutError:
            raise ApiError(
                504,
                f"the answer was not finished within {self._options.deadline_s:g} s (argosy.openai.deadline_s)",
                code="deadline_exceeded",
            ) from None

    async def _events(self, call: ChatCall, session: Session | None) -> AsyncIterator[bytes]:
        """The stream: pieces of text as they come, then how each choice ended. With tools or log-probs each choice
        comes as a whole at its end, since only then is it known what is a call."""
        queue: asyncio.Queue[tuple[int, Sequence[int]] | None] = asyncio.Queue()  # bounded by the tokens of the call
        stops = self._caller.stops(call)
        texts = [TextStream(self._caller.decode, stops) for _ in range(call.n)]
        head = self._caller.head(session)
        whole = call.parse_tools or call.logprobs
        answering = asyncio.ensure_future(
            self._in_time(
                self._caller.answer(call, session, head, None if whole else lambda *come: queue.put_nowait(come))
            )
        )
        answering.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            for index in range(call.n):
                yield head.event(index, {"role": "assistant", "content": ""})
            sent = [""] * call.n
            while (come := await queue.get()) is not None:
                if piece := texts[come[0]].push(come[1]):
                    sent[come[0]] += piece
                    yield head.event(come[0], {"content": piece})
            reply = answering.result()
            self._account(reply)
            for event in self._ends(call, head, reply, sent):
                yield event
            if call.include_usage:
                yield reply.usage_event()
            yield DONE
        except (ApiError, ArgosyError) as error:
            refusal = error if isinstance(error, ApiError) else from_argosy(error)
            yield sse(refusal.body())
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    def _ends(self, call: ChatCall, head: Reply, reply: Reply, sent: Sequence[str]) -> list[bytes]:
        events = []
        decode = self._caller.decode
        for answer in reply.answers:
            rest = answer.content[len(sent[answer.index]) :]
            delta: dict[str, Any] = {"content": rest} if rest else {}
            if answer.tool_calls:
                delta["tool_calls"] = [{"index": number} | dict(one) for number, one in enumerate(answer.tool_calls)]
            fields: dict[str, Any] = {"token_ids": list(answer.token_ids)} if call.return_token_ids else {}
            if call.logprobs:
                fields["logprobs"] = log_probs_of(answer, lambda ids: decode(ids, skip_special_tokens=False))
            if delta or fields:
                events.append(head.event(answer.index, delta, **fields))
            events.append(head.event(answer.index, {}, finish_reason=answer.finish_reason))
        return events

    def _account(self, reply: Reply) -> None:
        self._ctx.count("openai/sampled_tokens", sum(len(answer.token_ids) for answer in reply.answers))


class _Events(StreamingResponse):
    """Server-sent events that hold a place while they last, and end in time even if nobody reads them."""

    def __init__(self, events: AsyncIterator[bytes], deadline_s: float, places: Places) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._events = events
        self._deadline_s = deadline_s
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._places.take():
            async with aclosing(self._events):  # type: ignore[type-var]
                async with asyncio.timeout(self._deadline_s + 5):
                    await super().__call__(scope, receive, send)


async def while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """What comes of the work; the client's leaving ends it. Raises ApiError (499) then, for nobody to read."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client left")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
