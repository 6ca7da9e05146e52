"""The few HTTP calls to SGLang's server."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import httpx

from argosy.types.errors import DeadlineError, InternalError, InvalidInputError, UnavailableError

_CONNECT_S = 10.0
_AUTHORIZATION = "Authorization"
_DATA = "data: "
_DONE = "[DONE]"


class SglangClient:
    """Calls the server at `address`, which wants `key` from its callers.

    Every call raises UnavailableError if the connection is lost, DeadlineError after its timeout, and InternalError
    with the server's words if it refuses.
    """

    def __init__(self, address: str, *, key: str, call_timeout_s: float) -> None:
        self._call_timeout_s = call_timeout_s
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports each call
        self._http = httpx.AsyncClient(
            base_url=f"http://{address}",
            headers={_AUTHORIZATION: f"Bearer {key}"},
            timeout=httpx.Timeout(call_timeout_s, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # a proxy has no business on the loopback
        )

    async def is_ready(self) -> bool:
        """Whether the server is there, takes requests, and is the one that has our key: a stranger may have got the
        port in its place. Never raises for a server that isn't there yet."""
        try:
            if (await self._http.get("/ready", timeout=_CONNECT_S)).status_code != httpx.codes.OK:
                return False
            refused = await self._http.post("/flush_cache", headers={_AUTHORIZATION: "Bearer none"}, timeout=_CONNECT_S)
            taken = await self._http.post("/flush_cache", timeout=_CONNECT_S)
        except httpx.TransportError:
            return False
        return refused.status_code == httpx.codes.UNAUTHORIZED != taken.status_code

    async def check(self, path: str, timeout_s: float) -> None:
        """GET a health path; raises unless the server says that it is well."""
        with _translated(path, timeout_s):
            response = await self._http.get(path, timeout=timeout_s)
        if response.status_code != httpx.codes.OK:
            raise UnavailableError(f"SGLang answers {response.status_code} to {path}")

    async def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """POST a control call."""
        with _translated(path, self._call_timeout_s):
            response = await self._http.post(path, json=dict(body or {}))
        if response.status_code != httpx.codes.OK:
            raise InternalError(f"SGLang refuses {path} ({response.status_code}): {response.text[:2000]}")
        try:
            content = response.json()
        except ValueError:  # some calls answer with a sentence
            return {}
        return content if isinstance(content, dict) else {}

    async def generate(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """POST /generate; yields what the server streams. Closing the iterator ends the request at the server.

        Raises:
            InvalidInputError: the server refuses the request.
        """
        timeout = httpx.Timeout(None, connect=_CONNECT_S)  # the engine watches the server's health
        with _translated("/generate", _CONNECT_S):
            async with self._http.stream("POST", "/generate", json=dict(body), timeout=timeout) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise InvalidInputError(f"SGLang refuses a request: {response.text[:2000]}")
                async for line in response.aiter_lines():
                    if line.startswith(_DATA) and line != _DATA + _DONE:
                        content = json.loads(line.removeprefix(_DATA))
                        if "error" in content:
                            raise InvalidInputError(f"SGLang refuses a request: {content['error']}")
                        yield content

    async def close(self) -> None:
        """Drop every connection."""
        await self._http.aclose()


@contextlib.contextmanager
def _translated(path: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException:
        raise DeadlineError(f"SGLang has not answered {path} within {timeout_s:g} s") from None
    except httpx.TransportError as error:
        raise UnavailableError(f"the connection to SGLang is lost ({path}): {error}") from error
