"""What a request passes before anything is done for it: the key, its body's size, time and kind, a free place."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from argosy.config import Config
from argosy.controller.openai.errors import ApiError
from argosy.types.errors import ConfigError

log = logging.getLogger(__name__)

SESSION_HEADER = "x-argosy-session"
GROUP_HEADER = "x-argosy-group"
IN_KEY = ";session="
"""Divides an API key from a session's id, for frameworks that can set a key and no header."""
BODY_TIMEOUT_S = 30.0
"""A body that isn't here by then is no longer waited for."""
READING_BYTES = 256 << 20
"""Of all bodies together of which a part is here and the rest isn't."""


class Keys:
    """The API key, if the configuration names a variable that holds one. It is never written anywhere.

    Raises ConfigError if that variable is not set.
    """

    def __init__(self, config: Config) -> None:
        variable = config.argosy.openai.api_key_env
        self._key = os.environ.get(variable, "") if variable else ""
        if variable and not self._key:
            raise ConfigError(
                f"argosy.openai.api_key_env: the environment variable {variable} is not set: export it with the key "
                "that clients are to send, or leave api_key_env out where anybody on this machine may call"
            )

    def check(self, request: Request) -> None:
        """Raises ApiError: 401 unless the request brings the key, as `Authorization: Bearer …`; where none is asked
        for, 403 for what a web page of another origin has its reader's browser send."""
        if not self._key and _is_of_a_page(request):
            raise ApiError(
                403,
                "a web page may not call this endpoint behind its reader's back; to call it from a browser, set "
                "argosy.openai.api_key_env and send that key",
                code="cross_site",
            )
        if self._key and not hmac.compare_digest(_bearer(request)[0].encode(), self._key.encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong: send the one in the variable that argosy.openai.api_key_env names, "
                "as Authorization: Bearer …",
                code="invalid_api_key",
            )


def _is_of_a_page(request: Request) -> bool:
    """Browsers say where a request comes from, and let no page change that; nothing else sends these headers. No page
    is served here, so that none is our own, whatever name it has found for this address."""
    return "origin" in request.headers or request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def _bearer(request: Request) -> tuple[str, str]:
    """Key and session id of the Authorization header."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key, divider, session_id = (token if scheme.lower() == "bearer" else "").strip().rpartition(IN_KEY)
    return (key, session_id) if divider else (session_id, "")


def session_of(request: Request) -> str:
    """The session that a request names: in its path, in a header, or in its API key; "" for none.

    Raises ApiError (400) if it names two.
    """
    named = {request.path_params.get("session_id"), request.headers.get(SESSION_HEADER), _bearer(request)[1]}
    found = sorted(name for name in named if name)
    if len(found) > 1:
        raise ApiError(400, f"the request names {len(found)} sessions: {', '.join(found)}; name one")
    return found[0] if found else ""


class Places:
    """So many at once, and no more.

    Args:
        limit: How many.
        what: What takes them, for the refusal: "calls are running".
        key: Of the configuration, where the limit is.
    """

    def __init__(self, limit: int, what: str, key: str) -> None:
        self._limit = limit
        self._what = what
        self._key = key
        self.taken = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """A place while the block runs. Raises ApiError (429) when all are taken."""
        if self.taken >= self._limit:
            raise ApiError(
                429,
                f"{self.taken} {self._what} ({self._key}={self._limit}); come again",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class Intake:
    """Reads bodies: of as many clients at once as there may be calls and sessions, and READING_BYTES of them, or one
    of the largest size."""

    def __init__(self, config: Config) -> None:
        options = config.argosy.openai
        self.largest_bytes = options.max_body_mb << 20
        self._most_bytes = max(READING_BYTES, self.largest_bytes)
        self._places = Places(
            options.max_concurrency + options.max_sessions,
            "requests are being read",
            "argosy.openai.max_concurrency + max_sessions",
        )
        self._held_bytes = 0

    async def read(self, request: Request, limit_bytes: int) -> bytes:
        """The whole body. Raises ApiError: 413 if it is too long, 408 if it doesn't come, 415 if it isn't JSON, 429 if
        too much is being read.

        Only application/json is taken, which a web page of another origin can't send without being allowed to.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"content-type: got {kind or 'none'!r}, wants application/json")
        data = bytearray()
        with self._places.take():
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    async for piece in request.stream():
                        data += piece
                        self._held_bytes += len(piece)
                        self._check(len(data), limit_bytes)
            except TimeoutError:
                raise ApiError(408, f"the body did not come within {BODY_TIMEOUT_S:g} s", retry_after_s=1) from None
            except ClientDisconnect:
                raise ApiError(400, "the client left before its body was here") from None
            finally:
                self._held_bytes -= len(data)
        return bytes(data)

    def _check(self, size: int, limit_bytes: int) -> None:
        if size > limit_bytes:
            raise ApiError(
                413,
                f"the body has more than {limit_bytes} bytes (argosy.openai.max_body_mb)",
                code="body_too_large",
            )
        if self._held_bytes > self._most_bytes:
            raise ApiError(
                429,
                f"requests of {self._held_bytes} bytes are being read; come again",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
