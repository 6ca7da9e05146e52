"""The desk where sessions are begun, found, rewarded and given up. Each ends exactly once."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.controller.context import RunContext
from argosy.controller.openai.errors import ApiError, bad_request
from argosy.controller.openai.sessions import Session
from argosy.controller.openai.source import DATA_SET, SessionSource
from argosy.controller.openai.tasks import Task
from argosy.types.records import Scored

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
MAX_PARTS = 64
MOST = 3.4e38
OWN_DATA_SOURCE = "agent"
"""`data_source` of tasks that don't name one: metrics are shown by it."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A session and its task."""

    session: Session
    task: Task


class SessionDesk:
    """All sessions of a run, by id. Those that are over are remembered for a while, so that a repeat is answered alike.

    Args:
        ctx: The run.
        source: Where tasks come from and groups go.
    """

    def __init__(self, ctx: RunContext, source: SessionSource) -> None:
        self._ctx = ctx
        self._source = source
        self._options = ctx.config.argosy.openai
        self._seats: OrderedDict[str, Seat] = OrderedDict()
        self._beginning: dict[str, asyncio.Task[Seat]] = {}

    @property
    def open_count(self) -> int:
        """Sessions that are under way."""
        return sum(one.state == "open" for task in self._source.open_tasks.values() for one in task.sessions)

    def find(self, session_id: str) -> Seat:
        """A session that was begun. Raises ApiError (404)."""
        seat = self._seats.get(session_id)
        if seat is None:
            raise ApiError(
                404,
                f"there is no session {session_id!r}: POST /v1/sessions begins one, and so does a first call that "
                "names it; after a restart of the run earlier ones are gone",
                code="session_not_found",
            )
        return seat

    def has_begun(self, session_id: str) -> bool:
        """Whether there is such a session, open or over."""
        return session_id in self._seats

    async def for_call(self, session_id: str, key: str, wait_s: float) -> Seat:
        """The session that a call names, begun now if it is new. Raises ApiError: 410 if it is over."""
        _check_id(session_id)
        while session_id not in self._seats:  # its first calls, and the request that begins it, may come side by side
            beginning = self._beginning.get(session_id)
            if beginning is None:
                beginning = self._start(session_id, key, OWN_DATA_SOURCE, {}, wait_s)
            try:
                await asyncio.shield(beginning)
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if not beginning.cancelled() or (caller is not None and caller.cancelling()):
                    raise  # it is our caller who gave up, not the client who was beginning it
        seat = self.find(session_id)
        if seat.session.state != "open":
            raise over(seat.session)
        return seat

    def _begun(self, session_id: str, done: asyncio.Task[Seat]) -> None:
        del self._beginning[session_id]
        if not done.cancelled():
            done.exception()  # every call that waited has it; there may be none any more

    async def next_task(self, wait_s: float) -> Seat:
        """The next session of a row of the data set."""
        return await self.begin("", DATA_SET, "", {}, wait_s)

    async def begin(
        self, session_id: str, key: str, data_source: str, metadata: Mapping[str, Any], wait_s: float
    ) -> Seat:
        """A new session of a task of that key; "" makes an id. Raises ApiError: 429 if none may begin in time."""
        if session_id:
            _check_id(session_id)
        if session_id in self._seats or session_id in self._beginning:
            raise ApiError(409, f"session {session_id!r} has begun already", code="session_exists")
        return await self._start(session_id, key, data_source, metadata, wait_s)

    def _start(
        self, session_id: str, key: str, data_source: str, metadata: Mapping[str, Any], wait_s: float
    ) -> asyncio.Task[Seat]:
        """Begin it in a task that everybody who names the session can see. Raises ApiError (429): there are enough."""
        under_way = self.open_count + len(self._beginning)
        if under_way >= self._options.max_sessions:
            raise ApiError(
                429,
                f"{under_way} sessions are open or begin (argosy.openai.max_sessions={self._options.max_sessions}): "
                "finish some",
                code="too_many_sessions",
                retry_after_s=5,
            )
        name = session_id or f"s-{secrets.token_hex(8)}"
        beginning = asyncio.create_task(self._begin(name, key, data_source, metadata, wait_s))
        self._beginning[name] = beginning
        beginning.add_done_callback(lambda done: self._begun(name, done))
        return beginning

    async def _begin(
        self, session_id: str, key: str, data_source: str, metadata: Mapping[str, Any], wait_s: float
    ) -> Seat:
        task = await self._source.task(key, data_source, wait_s)
        session = task.begin(session_id, metadata)
        seat = self._seats[session.session_id] = Seat(session, task)
        self._ctx.count("openai/sessions")
        self._forget()
        return seat

    def reward(self, session_id: str, body: Any) -> Seat:
        """Finish a session. A repeat of the same reward changes nothing; another one is refused (409)."""
        seat = self.find(session_id)
        session = seat.session
        outcome, turn_rewards = read_reward(body)
        said = json.dumps([outcome.score, dict(outcome.parts), turn_rewards], sort_keys=True)
        if session.state == "rewarded" and session.reward == said:
            return seat
        if session.state == "rewarded":
            raise ApiError(
                409,
                f"session {session_id!r} has a reward already ({session.outcome.score if session.outcome else said}), "
                "and it is another one: the first one stays",
                code="already_rewarded",
            )
        if session.state == "ended":
            raise over(session)
        if session.running:
            raise ApiError(409, f"a call of session {session_id!r} still runs: wait for it", code="call_running")
        branch = session.trained_branch(self._options.train_branch)
        if branch is None:
            raise bad_request(
                f"session {session_id!r} has no answer of the policy, so there is nothing to reward: DELETE it"
            )
        if turn_rewards and len(turn_rewards) != len(branch.turns):
            raise bad_request(
                f"turn_rewards: got {len(turn_rewards)} for the {len(branch.turns)} answers that are trained "
                f"(argosy.openai.train_branch={self._options.train_branch})",
                "turn_rewards",
            )
        session.rewarded(outcome, turn_rewards, said)
        self._ctx.count("openai/rewarded_sessions")
        self._source.settle(seat.task)
        return seat

    def abandon(self, session_id: str, reason: str = "its client gave it up") -> Seat:
        """End a session without a reward; one that is over already stays as it is."""
        seat = self.find(session_id)
        if seat.session.state == "open":
            seat.session.end(reason)
            self._ctx.count("openai/abandoned_sessions")
            self._source.settle(seat.task)
        return seat

    def _forget(self) -> None:
        """Keep at most twice as many as may be open, and none that is."""
        excess = len(self._seats) - 2 * self._options.max_sessions
        for session_id in [name for name, seat in self._seats.items() if seat.session.state != "open"][
            : max(excess, 0)
        ]:
            del self._seats[session_id]


def _check_id(session_id: str) -> None:
    if not SESSION_ID.fullmatch(session_id):
        raise bad_request(
            f"session id: got {session_id!r}, wants 1 to 128 letters, digits, and ._:- between them", "id"
        )


def over(session: Session) -> ApiError:
    """The refusal of a call to a session that has ended."""
    why = "it has its reward" if session.state == "rewarded" else session.reason
    return ApiError(410, f"session {session.session_id!r} is over: {why}", code="session_over")


def read_reward(body: Any) -> tuple[Scored, tuple[float, ...]]:
    """{"reward": number, "parts": {name: number, text or flag}, "turn_rewards": [number, …]}. Raises ApiError."""
    if not isinstance(body, Mapping):
        raise bad_request('the body wants a JSON object such as {"reward": 1.0}')
    unknown = sorted(set(body) - {"reward", "parts", "turn_rewards"})
    if unknown:
        raise bad_request(f"{unknown[0]}: there is no such field; wants reward, parts, turn_rewards", unknown[0])
    parts = body.get("parts") or {}
    if not isinstance(parts, Mapping) or len(parts) > MAX_PARTS:
        raise bad_request(f"parts: wants an object of at most {MAX_PARTS} named numbers, texts or flags", "parts")
    for name, value in parts.items():
        if not isinstance(value, bool | str) and not _is_number(value):
            raise bad_request(f"parts.{name}: wants a number, a text or a flag", f"parts.{name}")
    turns = body.get("turn_rewards") or []
    if not isinstance(turns, list) or not all(map(_is_number, turns)):
        raise bad_request("turn_rewards: wants a list of finite numbers, one per answer", "turn_rewards")
    if not _is_number(body.get("reward")):
        raise bad_request(f"reward: got {json.dumps(body.get('reward'))}, wants a finite number", "reward")
    return Scored(float(body["reward"]), dict(parts)), tuple(map(float, turns))


def _is_number(value: Any) -> bool:
    """Within what a float32 holds, which is what rewards are trained in."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= MOST
