"""What is served where.

POST   /v1/chat/completions                          OpenAI's; X-Argosy-Session names the session
POST   /v1/sessions/{id}/v1/chat/completions         the same, for clients whose base URL is all that they can set
GET    /v1/models, /v1/models/{name}, /health
POST   /v1/tasks/next?wait_s=30                      a session of the next row of the run's data set
POST   /v1/sessions                                  {id, group, data_source, metadata}
GET    /v1/sessions/{id}
POST   /v1/sessions/{id}/reward                      {reward, parts, turn_rewards}: finishes it
DELETE /v1/sessions/{id}                             gives it up
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from argosy.controller.context import RunContext
from argosy.controller.openai.calls import Caller
from argosy.controller.openai.chat import ChatEndpoint, while_connected
from argosy.controller.openai.desk import OWN_DATA_SOURCE, Seat, SessionDesk
from argosy.controller.openai.errors import ApiError, bad_request, from_argosy
from argosy.controller.openai.guards import Intake, Keys, Places
from argosy.controller.openai.parameters import parse_json
from argosy.controller.plain import cleaned, refusal
from argosy.types.errors import ArgosyError

log = logging.getLogger(__name__)

MAX_WAIT_S = 300.0
"""Longest that a client may wait for a task in one call."""
SMALL_BODY_BYTES = 1 << 20
Handler = Callable[[Request], Awaitable[Response]]


class Endpoints:
    """The handlers that aren't chat."""

    def __init__(
        self,
        ctx: RunContext,
        caller: Caller,
        desk: SessionDesk | None,
        address: Callable[[], str],
        intake: Intake,
        waiting: Places,
    ) -> None:
        self._ctx = ctx
        self._caller = caller
        self._sessions = desk
        self._address = address
        self._started = int(time.time())
        self._intake = intake
        self._waiting = waiting

    @property
    def _desk(self) -> SessionDesk:
        if self._sessions is None:
            raise bad_request(
                "this run does not train on sessions: start it with argosy.openai.source=sessions", code="no_sessions"
            )
        return self._sessions

    async def health(self, request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok", "run_id": self._ctx.run_id})

    async def models(self, request: Request) -> Response:
        """The one model: the policy as it is now."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """The same by its name."""
        if request.path_params["name"] != self._caller.model_name:
            raise ApiError(404, f"this run serves the model {self._caller.model_name!r}", code="model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {"id": self._caller.model_name, "object": "model", "created": self._started, "owned_by": "argosy"}

    async def next_task(self, request: Request) -> Response:
        """A session of the next row; 204 if none may begin within wait_s."""
        with self._waiting.take():
            try:
                seat = await while_connected(request, self._desk.next_task(_wait_s(request)))
            except ApiError as error:
                if error.code == "not_admitted":
                    return Response(status_code=204)
                raise
        return JSONResponse(self._shown(seat) | {"task": _task(seat)})

    async def begin(self, request: Request) -> Response:
        """A session of a task that the client names."""
        body = await self._read(request)
        unknown = sorted(set(body) - {"id", "group", "data_source", "metadata"})
        if unknown:
            raise bad_request(
                f"{unknown[0]}: there is no such field; wants id, group, data_source, metadata", unknown[0]
            )
        for name in ("id", "group", "data_source"):
            if not isinstance(body.get(name, ""), str):
                raise bad_request(f"{name}: wants text", name)
        metadata = body.get("metadata", {})
        if not isinstance(metadata, Mapping):
            raise bad_request("metadata: wants an object", "metadata")
        if problem := refusal(metadata):
            raise bad_request(f"metadata: {problem}", "metadata")
        if not body.get("group"):
            raise bad_request(
                "group: wants the name of the task: sessions of one group are compared with each other", "group"
            )
        source = body.get("data_source") or OWN_DATA_SOURCE
        with self._waiting.take():
            beginning = self._desk.begin(
                body.get("id", ""), f"group:{body['group']}", source, metadata, _wait_s(request)
            )
            seat = await while_connected(request, beginning)
        return JSONResponse(self._shown(seat), status_code=201)

    async def session(self, request: Request) -> Response:
        """How a session stands."""
        return JSONResponse(self._shown(self._desk.find(request.path_params["session_id"])))

    async def reward(self, request: Request) -> Response:
        """Finish a session."""
        body = await self._read(request)
        return JSONResponse(self._shown(self._desk.reward(request.path_params["session_id"], body)))

    async def abandon(self, request: Request) -> Response:
        """Give a session up."""
        return JSONResponse(self._shown(self._desk.abandon(request.path_params["session_id"])))

    async def _read(self, request: Request) -> Mapping[str, Any]:
        body = parse_json(await self._intake.read(request, SMALL_BODY_BYTES))
        if not isinstance(body, Mapping):
            raise bad_request("the body wants a JSON object")
        return body

    def _shown(self, seat: Seat) -> dict[str, Any]:
        session = seat.session
        return {
            "id": session.session_id,
            "object": "session",
            "state": session.state,
            "reason": session.reason,
            "sample_id": str(session.sample_id),
            "base_url": f"{self._address()}/v1/sessions/{session.session_id}/v1",
            "calls": session.call_count,
            "branches": len(session.branches),
            "metadata": dict(session.metadata),
            "reward": None if session.outcome is None else session.outcome.score,
        }


def _task(seat: Seat) -> dict[str, Any]:
    prompt = seat.task.prompt
    return {
        "group": str(prompt.group),
        "index": prompt.index,
        "messages": [dict(message) for message in prompt.messages],
        "tools": [dict(tool) for tool in prompt.tools],
        "data_source": prompt.data_source,
        "ground_truth": cleaned(prompt.ground_truth),  # Parquet writes missing numbers as NaN, which JSON hasn't
        "extra_info": cleaned(prompt.extra_info),
    }


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait_s", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_WAIT_S:
        raise bad_request(f"wait_s: got {text!r}, wants seconds from 0 to {MAX_WAIT_S:g}", "wait_s")
    return seconds


def build_app(ctx: RunContext, caller: Caller, desk: SessionDesk | None, address: Callable[[], str]) -> Starlette:
    """The application. `address`: of the server, once it listens. Raises ConfigError if the API key isn't there."""
    keys, intake = Keys(ctx.config), Intake(ctx.config)
    most = ctx.config.argosy.openai.max_sessions
    waiting = Places(most, "clients wait for a session", "argosy.openai.max_sessions")
    chat = ChatEndpoint(ctx, caller, desk, intake, waiting)
    ends = Endpoints(ctx, caller, desk, address, intake, waiting)

    def guarded(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            keys.check(request)
            return await handler(request)

        return handle

    def route(path: str, handler: Handler, *methods: str) -> Route:
        return Route(path, guarded(handler), methods=list(methods))

    one = "/v1/sessions/{session_id}"
    routes = [
        Route("/health", ends.health, methods=["GET"]),
        route("/v1/chat/completions", chat, "POST"),
        route(f"{one}/v1/chat/completions", chat, "POST"),
        *(route(f"{prefix}/v1/models", ends.models, "GET") for prefix in ("", one)),
        *(route(f"{prefix}/v1/models/{{name:path}}", ends.model, "GET") for prefix in ("", one)),
        route("/v1/tasks/next", ends.next_task, "POST"),  # it hands out work: no page's <img> may
        route("/v1/sessions", ends.begin, "POST"),
        route(one, ends.session, "GET"),
        route(one, ends.abandon, "DELETE"),
        route(f"{one}/reward", ends.reward, "POST"),
    ]
    handlers = {ApiError: _api_error, ArgosyError: _argosy_error, HTTPException: _http_error, Exception: _defect}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


async def _argosy_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ArgosyError)
    refusal = from_argosy(error)
    if refusal.status >= 500:
        log.warning("%s %s: %s", request.method, request.url.path, error)
    return await _api_error(request, refusal)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    response = await _api_error(request, ApiError(error.status_code, what, code=code))
    response.headers.update(error.headers or {})  # which methods there are
    return response


async def _defect(request: Request, error: Exception) -> Response:
    """A defect of ours; Starlette raises it again, so that the server logs where."""
    return await _api_error(request, ApiError(500, f"internal error: {json.dumps(type(error).__name__)}"))
