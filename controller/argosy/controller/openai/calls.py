"""A call becomes samples to generate, and what comes of them becomes answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from argosy.config import Config
from argosy.controller.agents.parsers import ToolCall, ToolParser
from argosy.controller.openai.answers import Answer, Reply
from argosy.controller.openai.desk import over
from argosy.controller.openai.errors import ApiError, bad_request
from argosy.controller.openai.parameters import ChatCall
from argosy.controller.openai.prompts import Prompts
from argosy.controller.openai.sampling import Sampling
from argosy.controller.openai.sessions import Branch, Session
from argosy.controller.openai.streaming import cut_at_stop
from argosy.controller.plain import cleaned
from argosy.text import TextTokenizer
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, SamplingParams, TokenRun

OnTokens = Callable[[int, Sequence[int]], None]
"""Told (choice, further tokens of it) as they come."""


class Generates(Protocol):
    """What of the rollout stage is needed."""

    async def generate_one(
        self, request: GenerateRequest, *, on_run: Callable[[TokenRun], None] | None = None
    ) -> Completion:
        """One sample."""
        ...


class Caller:
    """Answers calls with the rollout fleet.

    Args:
        config: The run's.
        rollout: The fleet.
        tokenizer: Of the policy.
        parser: Finds tool calls in an answer.
    """

    def __init__(self, config: Config, rollout: Generates, tokenizer: TextTokenizer, parser: ToolParser) -> None:
        self._options = config.argosy.openai
        self._sampling = Sampling(config)
        self._prompts = Prompts(config, tokenizer)
        self._rollout = rollout
        self.tokenizer = tokenizer
        self._parser = parser
        self._numbers = itertools.count()
        self.model_name = self._options.model_name or config.actor_rollout_ref.model.path.rstrip("/").rpartition("/")[2]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text that can be sent: a tokenizer of a model's own code may give half a character, which no UTF-8 holds."""
        return str(cleaned(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)))

    def check(self, call: ChatCall, *, in_session: bool) -> None:
        """Refuse what can be refused before anything is begun. Raises ApiError."""
        if self._options.model_name and call.model != self._options.model_name:
            raise ApiError(
                404,
                f"model: got {call.model!r}; this run serves {self._options.model_name!r} (argosy.openai.model_name)",
                param="model",
                code="model_not_found",
            )
        if in_session:
            self._sampling.params(call, trained=True)
            if dict(call.template_kwargs):
                raise bad_request(
                    "chat_template_kwargs: not in a session that is trained; set data.apply_chat_template_kwargs",
                    "chat_template_kwargs",
                )

    def stops(self, call: ChatCall) -> tuple[str, ...]:
        """Texts that end an answer of this call."""
        return self._sampling.stops(call)

    def head(self, session: Session | None) -> Reply:
        """A reply without its answers: what every event of a stream begins with."""
        return Reply(
            f"chatcmpl-{secrets.token_hex(12)}", self.model_name, "" if session is None else session.session_id
        )

    async def answer(
        self, call: ChatCall, session: Session | None, head: Reply, on_tokens: OnTokens | None = None
    ) -> Reply:
        """Generate the answers of a call; a session keeps them. Raises ApiError, and ArgosyError of the fleet."""
        if session is None:
            return await self._plain(call, head, on_tokens)
        return await self._in_session(call, session, head, on_tokens)

    async def _plain(self, call: ChatCall, head: Reply, on_tokens: OnTokens | None) -> Reply:
        """A call outside of any session: nothing of it is trained."""
        branch = self._prompts.root(call, 0)
        sample = SampleId(0, next(self._numbers), 0)
        params = self._sampling.limited(self._sampling.params(call, trained=False), call, branch, trained=False)
        requests = [
            GenerateRequest(replace(sample, k=choice), branch.prompt_ids, params, "api") for choice in range(call.n)
        ]
        completions = await self._generate(requests, on_tokens)
        return self._reply(call, head, branch, completions)

    async def _in_session(self, call: ChatCall, session: Session, head: Reply, on_tokens: OnTokens | None) -> Reply:
        if session.call_count >= self._options.max_calls:
            raise ApiError(
                400,
                f"session {session.session_id!r} has made {session.call_count} calls "
                f"(argosy.openai.max_calls={self._options.max_calls}): reward or DELETE it",
                code="too_many_calls",
            )
        place = session.place(call.messages, call.tools)
        if place.branch is None:
            branch = self._prompts.root(call, place.attempt)
        else:
            branch = self._prompts.after(place.branch, place.new_messages)
        params = self._sampling.limited(self._sampling.params(call, trained=True), call, branch, trained=True)
        attempts = session.choices(place, call.n)
        requests = [self._request(session, replace(branch, attempt=attempt), params) for attempt in attempts]
        session.call_count += 1
        session.running |= set(attempts)
        try:
            completions = await self._unless_over(session, self._generate(requests, on_tokens))
        finally:
            session.running -= set(attempts)
            session.used = asyncio.get_running_loop().time()
        reply = self._reply(call, head, branch, completions)
        for attempt, answer, completion in reversed(list(zip(attempts, reply.answers, completions, strict=True))):
            session.keep(replace(branch, attempt=attempt).answered(answer.kept_message(), completion))
        return reply

    def _request(self, session: Session, branch: Branch, params: SamplingParams) -> GenerateRequest:
        """The session's own sample where it is the first conversation; a branch draws other noise, and is entered in
        the books only as what its session says of it."""
        return GenerateRequest(
            replace(session.sample_id, attempt=branch.attempt),
            branch.prompt_ids,
            params,
            "branch" if branch.attempt else "train",
            branch.generated,
            turn_start=len(branch.mask),
        )

    async def _generate(self, requests: Sequence[GenerateRequest], on_tokens: OnTokens | None) -> list[Completion]:
        watched = [_Watch(index, len(request.generated.token_ids), on_tokens) for index, request in enumerate(requests)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._rollout.generate_one(request)
                        if on_tokens is None
                        else self._rollout.generate_one(request, on_run=watch.take)
                    )
                    for request, watch in zip(requests, watched, strict=True)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        for task in tasks:
            completion = task.result()
            if completion.overlong_prompt:
                raise ApiError(400, completion.error, param="messages", code="context_length_exceeded")
            if completion.finish_reason in (FinishReason.FAILED, FinishReason.ABORTED):
                raise ApiError(503, f"the answer could not be finished: {completion.error}", retry_after_s=2)
        return [task.result() for task in tasks]

    async def _unless_over(self, session: Session, work: Coroutine[Any, Any, list[Completion]]) -> list[Completion]:
        """What comes of the work; the session's end ends it too."""
        working, ending = asyncio.ensure_future(work), asyncio.ensure_future(session.over.wait())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            if session.over.is_set():  # in the same moment, perhaps: what has ended keeps nothing more
                raise over(session)
            return working.result()
        finally:
            working.cancel()
            ending.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    def _reply(self, call: ChatCall, head: Reply, branch: Branch, completions: Sequence[Completion]) -> Reply:
        start = len(branch.mask)
        return replace(
            head,
            prompt_ids=(*branch.prompt_ids, *branch.generated.token_ids),
            answers=tuple(self._answer(call, index, start, completion) for index, completion in enumerate(completions)),
            cached_tokens=completions[0].cached_prompt_tokens,
        )

    def _answer(self, call: ChatCall, index: int, start: int, completion: Completion) -> Answer:
        ids, decode = completion.token_ids[start:], self.decode
        stopped = completion.finish_reason is FinishReason.STOP
        stops = self.stops(call)
        text = decode(ids)
        if stopped and stops:
            text = cut_at_stop(text, decode(ids[:-1]), stops)
        reason = "stop" if stopped else "length"
        calls: tuple[dict[str, Any], ...] = ()
        if call.parse_tools:
            spoken = ids[:-1] if ids and ids[-1] in self.tokenizer.eos_token_ids else ids
            parsed = self._parser.parse(decode(spoken, skip_special_tokens=False), call.tools)
            if parsed.calls:
                text, reason = parsed.content, "tool_calls"
                calls = tuple(_as_text(found) for found in parsed.calls)
        return Answer(index, ids, completion.log_probs[start:], reason, text, calls)


def _as_text(call: ToolCall) -> dict[str, Any]:
    """A call as OpenAI's API has it: arguments are JSON text."""
    found = call.openai(f"call_{secrets.token_hex(12)}")
    function = found["function"]
    return found | {"function": {"name": function["name"], "arguments": json.dumps(function["arguments"])}}


class _Watch:
    """Tokens of one choice as they come; a sample that goes on at another server may repeat some."""

    def __init__(self, index: int, seen: int, on_tokens: OnTokens | None) -> None:
        self._index = index
        self._seen = seen
        self._on_tokens = on_tokens

    def take(self, run: TokenRun) -> None:
        new = run.token_ids[max(self._seen - run.offset, 0) :]
        if new and self._on_tokens is not None:
            self._seen += len(new)
            self._on_tokens(self._index, new)
