"""Somebody's HTTP server with a model, behind bounds: calls at once, a rate, repeats, time, bytes.

A call is repeated after a lost connection, an attempt's timeout and the statuses 408, 425, 429 and 5xx, with growing
pauses, at least what Retry-After asks; never beyond the sample's own deadline. Other statuses say that the request is
wrong: repeating it would only cost. The key comes from an environment variable that the configuration names; it is in
no message, log or representation.
"""

from __future__ import annotations

import asyncio
import copy
import email.utils
import json
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from argosy.reward.models.costs import Prices, Usage
from argosy.reward.models.limits import RateLimit
from argosy.types.errors import ConfigError

_REPEATED = frozenset((408, 425, 429, 500, 502, 503, 504, 529))
_MOST_BYTES = 8 << 20
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class EndpointError(Exception):
    """A call that brought nothing, with the reason code of the samples' outcome."""

    def __init__(self, reason: str, message: str, *, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.usage = usage or Usage()
        """What was sent for it all the same."""


class _RepeatableError(Exception):
    def __init__(self, reason: str, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Where the server is, and what it may be asked."""

    url: str
    """Up to where paths begin: "http://127.0.0.1:8000", "https://host/v1"."""
    api_key_env: str | None = None
    """Environment variable with the key; None: no key is sent."""
    concurrency: int = 8
    requests_per_minute: float = 0
    tokens_per_minute: float = 0
    timeout_s: float = 60.0
    """Of one attempt."""
    attempts: int = 4
    """Of one call, the first included."""
    prices: Prices = field(default_factory=Prices)


class Endpoint:
    """Posts JSON. Made in any thread; used, and closed, in one event loop."""

    def __init__(self, options: EndpointOptions) -> None:
        """Raises ConfigError on a URL that is none or holds a password, and on a key variable that isn't set."""
        self.options = options
        self._host = _checked_host(options.url)
        self._key = _key(options.api_key_env)
        self._requests = RateLimit(options.requests_per_minute)
        self._tokens = RateLimit(options.tokens_per_minute)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._client: httpx.AsyncClient | None = None

    async def post(
        self, path: str, payload: Mapping[str, Any], *, deadline_s: float, expected_tokens: int = 0
    ) -> tuple[dict[str, Any], Usage]:
        """The answer's JSON object, and what it cost. `expected_tokens` (prompt and answer) wait for their rate.

        Raises EndpointError: "timeout", "unavailable", "rate_limited", "refused" (a status that repeating won't mend)
        or "bad_return" (no JSON object, or too large a one).
        """
        usage = Usage()
        last: _RepeatableError | None = None
        try:
            async with asyncio.timeout(deadline_s), self._slots:
                for attempt in range(self.options.attempts):
                    if last is not None:
                        await asyncio.sleep(max(last.wait_s, _pause_s(attempt)))
                        usage.repeats += 1
                    await self._requests.take()
                    await self._tokens.take(expected_tokens)
                    usage.requests += 1
                    try:
                        answer = await self._once(path, payload)
                    except _RepeatableError as error:
                        last = error
                        continue
                    self._account(answer, usage, expected_tokens)
                    return answer, usage
        except TimeoutError:
            why = f"; before that: {last.message}" if last is not None else ""
            raise EndpointError(
                "timeout", f"{self._host} gave no answer within {deadline_s:.3g} s{why}", usage=usage
            ) from None
        except EndpointError as error:
            error.usage = usage
            raise
        assert last is not None
        raise EndpointError(last.reason, f"{last.message} ({usage.requests} attempts)", usage=usage)

    def with_own_cookies(self) -> Endpoint:
        """The same server behind the same bounds (calls at once, rates), with connections and cookies of its own, which
        must be closed."""
        other = copy.copy(self)
        other._client = None
        return other

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _once(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with (
                asyncio.timeout(self.options.timeout_s),
                self._connected().stream("POST", path, json=payload) as response,
            ):
                body = await _read(response, self._host)
        except TimeoutError:
            raise _RepeatableError("timeout", f"{self._host} took longer than {self.options.timeout_s:g} s") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _RepeatableError("unavailable", f"{self._host} can't be reached: {type(error).__name__}") from None
        if response.status_code in _REPEATED:
            reason = "rate_limited" if response.status_code == 429 else "unavailable"
            said = f"{self._host}{path} answered {response.status_code}: {self._shown(body)}"
            raise _RepeatableError(reason, said, _retry_after_s(response.headers.get("retry-after")))
        if response.status_code != 200:
            raise EndpointError("refused", f"{self._host}{path} answered {response.status_code}: {self._shown(body)}")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise EndpointError("bad_return", f"{self._host}{path} gave no JSON object: {self._shown(body)}")
        return answer

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            loopback = urlsplit(self.options.url).hostname in _LOOPBACK
            self._client = httpx.AsyncClient(
                base_url=self.options.url,
                headers={} if self._key is None else {"authorization": f"Bearer {self._key}"},
                timeout=None,  # `_once` bounds the whole attempt
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=self.options.concurrency),
                follow_redirects=False,
                trust_env=not loopback,
            )
        return self._client

    def _account(self, answer: Mapping[str, Any], usage: Usage, expected_tokens: int) -> None:
        prompt, completion = tokens_of(answer)
        usage.prompt_tokens += prompt
        usage.completion_tokens += completion
        usage.cost += self.options.prices.cost(prompt, completion)
        if prompt + completion:
            self._tokens.settle(prompt + completion - expected_tokens)

    def _shown(self, body: bytes) -> str:
        text = body[:500].decode("utf-8", "replace").strip()
        return text if self._key is None else text.replace(self._key, "(key)")

    def __repr__(self) -> str:
        return f"Endpoint({self.options.url!r})"


def tokens_of(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and completion tokens that an OpenAI-style answer tells; 0 where it doesn't."""
    told = answer.get("usage")
    counts = told if isinstance(told, Mapping) else {}

    def count(name: str) -> int:
        value = counts.get(name)
        return value if isinstance(value, int) and value > 0 else 0

    return count("prompt_tokens"), count("completion_tokens")


async def _read(response: httpx.Response, host: str) -> bytes:
    """The body, bounded: nobody's server may fill our memory."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > _MOST_BYTES:
            raise EndpointError("bad_return", f"{host} sent more than {_MOST_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _pause_s(attempt: int) -> float:
    """Before the attempt (1, 2 …): doubling, with jitter, so that many samples don't come again at once."""
    pause_s = min(_FIRST_PAUSE_S * float(1 << (attempt - 1)), _LONGEST_PAUSE_S)
    return pause_s * random.uniform(0.75, 1.25)


def _retry_after_s(value: str | None) -> float:
    """Seconds that a Retry-After header asks for, as a number or a date; 0 without a readable one."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0


def _checked_host(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the endpoint's url wants http://… or https://…, got {url!r}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the endpoint's url must not hold a user or password: name a variable in api_key_env")
    return parts.netloc


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"the endpoint's api_key_env: the environment variable {variable} is not set")
    return key
