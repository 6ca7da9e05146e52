"""Calls of an HTTP server: repeats, pauses, rates, bounds, costs, and a key that nobody sees."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import time
from typing import Any

import pytest

from argosy.reward.models.costs import Prices
from argosy.reward.models.endpoint import Endpoint, EndpointError, EndpointOptions
from argosy.reward.models.limits import RateLimit
from argosy.types.errors import ConfigError
from support.model_server import Fault, ModelServer

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


async def post(server: ModelServer, *, deadline_s: float = 10.0, **options: Any) -> Any:
    endpoint = Endpoint(EndpointOptions(server.url, **options))
    try:
        return await endpoint.post("/v1/chat/completions", CHAT, deadline_s=deadline_s)
    finally:
        await endpoint.close()


async def test_counts_tokens_and_money(server: ModelServer) -> None:
    answer, usage = await post(server, prices=Prices(prompt=2e4, completion=1e5))
    assert answer["choices"][0]["message"]["content"] == "Score: 7"
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 100, 10)
    assert usage.cost == pytest.approx(2 + 1)


@pytest.mark.parametrize("fault", [Fault(503), Fault(429), Fault(500), Fault(408), Fault(drop=True)], ids=str)
async def test_repeats_what_may_pass(server: ModelServer, fault: Fault) -> None:
    server.faults = [fault, fault]
    _, usage = await post(server)
    assert (usage.requests, usage.repeats) == (3, 2)


@pytest.mark.parametrize(
    ("fault", "reason"), [(Fault(503), "unavailable"), (Fault(429), "rate_limited"), (Fault(drop=True), "unavailable")]
)
async def test_gives_up_after_its_attempts(server: ModelServer, fault: Fault, reason: str) -> None:
    server.faults = [fault] * 9
    with pytest.raises(EndpointError) as caught:
        await post(server, attempts=3)
    assert caught.value.reason == reason
    assert caught.value.usage.requests == len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 413, 302])
async def test_never_repeats_what_is_refused(server: ModelServer, status: int) -> None:
    server.faults = [Fault(status, {"location": "/elsewhere"}, b"no such model")]
    with pytest.raises(EndpointError, match="no such model") as caught:
        await post(server)
    assert caught.value.reason == "refused"
    assert len(server.requests) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_honours_retry_after(server: ModelServer, form: str) -> None:
    date = int(time.time()) + 3
    value = "1.2" if form == "seconds" else email.utils.formatdate(date, usegmt=True)
    at = time.monotonic() + date - time.time()
    server.faults = [Fault(429, {"retry-after": value})]
    await post(server)
    assert server.times[1] >= (server.times[0] + 1.1 if form == "seconds" else at - 0.1)


async def test_retry_after_beyond_the_deadline_is_not_waited_for(server: ModelServer) -> None:
    server.faults = [Fault(429, {"retry-after": "3600"})]
    start = time.monotonic()
    with pytest.raises(EndpointError, match="429") as caught:
        await post(server, deadline_s=0.5)
    assert caught.value.reason == "timeout"
    assert time.monotonic() - start < 10  # a hang guard


async def test_an_attempt_that_hangs_is_ended_and_repeated(server: ModelServer) -> None:
    server.faults = [Fault(hang_s=20)]
    start = time.monotonic()
    _, usage = await post(server, timeout_s=0.3)
    assert usage.requests == 2
    assert time.monotonic() - start < 20  # what hangs


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"", b"[" * 100_000, b" " * (9 << 20)], ids=lambda b: str(b[:6]))
async def test_answers_that_are_none(server: ModelServer, body: bytes) -> None:
    server.faults = [Fault(200, {}, body)]
    with pytest.raises(EndpointError) as caught:
        await post(server)
    assert caught.value.reason == "bad_return"
    assert ("sent more than" in caught.value.message) is (len(body) > 8 << 20)


async def test_concurrency_is_bounded(server: ModelServer) -> None:
    server.delay_s = 0.05
    endpoint = Endpoint(EndpointOptions(server.url, concurrency=3))
    await asyncio.gather(*(endpoint.post("/v1/chat/completions", CHAT, deadline_s=10) for _ in range(12)))
    await endpoint.close()
    assert server.most_running == 3


async def test_requests_per_minute(server: ModelServer) -> None:
    """600 a minute: 50 at once (five seconds' worth), then one each tenth of a second."""
    endpoint = Endpoint(EndpointOptions(server.url, requests_per_minute=600, concurrency=64))
    start = time.monotonic()
    await asyncio.gather(*(endpoint.post("/v1/chat/completions", CHAT, deadline_s=10) for _ in range(60)))
    await endpoint.close()
    assert 0.8 <= time.monotonic() - start < 9  # a hang guard


async def test_tokens_per_minute_counts_what_was_used(server: ModelServer) -> None:
    """The estimate is corrected by the server's count: 110 tokens each, of 6600 a minute."""
    endpoint = Endpoint(EndpointOptions(server.url, tokens_per_minute=6600, concurrency=1))
    start = time.monotonic()
    for _ in range(7):
        await endpoint.post("/v1/chat/completions", CHAT, deadline_s=10, expected_tokens=1)
    await endpoint.close()
    assert 0.8 <= time.monotonic() - start < 9  # a hang guard


async def test_rate_limit_is_never_exceeded() -> None:
    """On a clock of its own: over any minute at most the limit and the burst of five seconds."""
    limit = RateLimit(1200)
    times = []
    for _ in range(130):
        await limit.take()
        times.append(time.monotonic())
    assert times[99] - times[0] < 0.5
    assert times[129] - times[99] >= 29 / 20 - 0.1


async def test_more_than_the_bucket_leaves_a_debt() -> None:
    limit = RateLimit(60)  # holds 5, one a second
    await limit.take(6)
    start = time.monotonic()
    await limit.take(0.5)
    assert 1.2 <= time.monotonic() - start < 20  # a hang guard


async def test_key_is_sent_and_never_shown(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    server.faults = [Fault(401, {}, b"bad key sk-very-secret")]
    endpoint = Endpoint(EndpointOptions(server.url, api_key_env="JUDGE_KEY"))
    with pytest.raises(EndpointError) as caught:
        await endpoint.post("/v1/chat/completions", CHAT, deadline_s=5)
    await endpoint.close()
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "very-secret" not in str(caught.value) + repr(endpoint) + repr(vars(caught.value)) + caplog.text


def test_bad_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for options, said in (
        (EndpointOptions("ftp://host"), "http"),
        (EndpointOptions("http://me:word@host"), "password"),
        (EndpointOptions("http://host", api_key_env="NO_SUCH_KEY"), "NO_SUCH_KEY is not set"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            Endpoint(options)
        assert "word@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("http://[::1]", False), ("http://[::1]:8000/v1", False), ("http://localhost:1", False),
        ("http://127.0.0.1", False), ("http://10.0.0.7:8000", True), ("https://[2001:db8::1]/v1", True),
    ],
)  # fmt: skip
async def test_proxies_of_the_environment_are_used_except_for_loopback(url: str, *, used: bool) -> None:
    endpoint = Endpoint(EndpointOptions(url))
    assert endpoint._connected().trust_env is used
    await endpoint.close()
