"""What a request passes before anything is done for it: the key, the size and the time of its body, a free place."""

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


class Keys:
    """The API key, if the configuration names a variable that holds one. It is never written anywhere.

    Raises ConfigError if that variable is not set.
    """

    def __init__(self, config: Config) -> None:
        variable = config.argosy.openai.api_key_env
        self._key = os.environ.get(variable, "") if variable else ""
        if variable and not self._key:
            raise ConfigError(
                f"argosy.openai.api_key_env: the environment variable {variable} is not set: export it with the key that "
                "clients are to send, or leave api_key_env out where anybody on this machine may call"
            )

    def check(self, request: Request) -> None:
        """Raises ApiError (401) unless the request brings the key, as `Authorization: Bearer …`."""
        if self._key and not hmac.compare_digest(_bearer(request)[0].encode(), self._key.encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong: send the one in the variable that argosy.openai.api_key_env names, "
                "as Authorization: Bearer …",
                code="invalid_api_key",
            )


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


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises ApiError: 413 if it is too long, 408 if it doesn't come, 415 if it isn't JSON.

    Only application/json is taken, which a web page of another origin can't send without being allowed to.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type: got {kind or 'none'!r}, wants application/json")
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                data += piece
                if len(data) > limit_bytes:
                    raise ApiError(
                        413,
                        f"the body has more than {limit_bytes} bytes (argosy.openai.max_body_mb)",
                        code="body_too_large",
                    )
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {BODY_TIMEOUT_S:g} s", retry_after_s=1) from None
    except ClientDisconnect:
        raise ApiError(400, "the client left before its body was here") from None
    return bytes(data)


class Places:
    """So many calls at once, and no more."""

    def __init__(self, limit: int, key: str) -> None:
        self._limit = limit
        self._key = key
        self.taken = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """A place while the block runs. Raises ApiError (429) when all are taken."""
        if self.taken >= self._limit:
            raise ApiError(
                429,
                f"{self.taken} calls are running ({self._key}={self._limit}); come again",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
