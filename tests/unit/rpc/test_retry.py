from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
import pytest

from argosy.rpc.channel import Caller
from argosy.rpc.retry import NO_RETRY, RetryPolicy, retry
from argosy.types import errors

QUICK = RetryPolicy(max_attempts=4, first_backoff_s=0.005, max_backoff_s=0.01)


class Attempts:
    """Raises the given errors in turn, then answers; remembers when it was tried and with what."""

    def __init__(self, *raises: errors.ArgosyError) -> None:
        self.raises = list(raises)
        self.times: list[float] = []
        self.given: list[tuple[float, float]] = []

    async def __call__(self, timeout_s: float, left_s: float) -> str:
        self.times.append(time.monotonic())
        self.given.append((timeout_s, left_s))
        if self.raises:
            raise self.raises.pop(0)
        return "done"


@pytest.mark.parametrize(
    "make", [errors.UnavailableError, errors.OverloadedError, errors.DeadlineError], ids=lambda kind: kind.__name__
)
async def test_passing_troubles_are_tried_again(make: Callable[[str], errors.ArgosyError]) -> None:
    error = make("now")
    if isinstance(error, errors.OverloadedError):
        error.retry_after_s = 0.01
    attempts = Attempts(error, error)
    assert await retry(attempts, deadline_s=10, policy=QUICK) == "done"
    assert len(attempts.times) == 3


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidInputError,
        errors.FencedError,
        errors.StepMismatchError,
        errors.StateError,
        errors.CorruptDataError,
        errors.MessageTooLargeError,
        errors.InternalError,
        errors.AbortedError,
        errors.WeightsRefusedError,
        errors.NotFoundError,
    ],
)
async def test_everything_else_is_raised_at_once(kind: type[errors.ArgosyError]) -> None:
    attempts = Attempts(kind("for good"))
    with pytest.raises(kind):
        await retry(attempts, deadline_s=10, policy=QUICK)
    assert len(attempts.times) == 1


async def test_tries_are_bounded_and_the_last_error_is_raised() -> None:
    attempts = Attempts(*(errors.UnavailableError(str(index)) for index in range(10)))
    with pytest.raises(errors.UnavailableError, match="3"):
        await retry(attempts, deadline_s=10, policy=QUICK)
    assert len(attempts.times) == 4
    with pytest.raises(errors.UnavailableError):
        await retry(Attempts(errors.UnavailableError("")), deadline_s=10, policy=NO_RETRY)


async def test_an_overloaded_server_is_not_asked_before_its_retry_info() -> None:
    attempts = Attempts(errors.OverloadedError("full", retry_after_s=0.15))
    await retry(attempts, deadline_s=10, policy=QUICK)
    assert attempts.times[1] - attempts.times[0] >= 0.15


async def test_a_wait_longer_than_what_is_left_is_not_begun() -> None:
    attempts = Attempts(errors.OverloadedError("full", retry_after_s=60))
    began = time.monotonic()
    with pytest.raises(errors.OverloadedError):
        await retry(attempts, deadline_s=2, policy=QUICK)
    assert time.monotonic() - began < 2  # the deadline


async def test_the_total_deadline_covers_all_tries() -> None:
    tries: list[float] = []

    async def hang(timeout_s: float, left_s: float) -> None:
        tries.append(left_s)
        await asyncio.sleep(timeout_s)
        raise errors.DeadlineError("this try")

    policy = RetryPolicy(max_attempts=100, attempt_timeout_s=0.1, first_backoff_s=0.005, max_backoff_s=0.005)
    began = time.monotonic()
    with pytest.raises(errors.DeadlineError, match=r"the call: not done within the total deadline of 0\.35 s"):
        await retry(hang, deadline_s=0.35, policy=policy)
    assert 0.3 < time.monotonic() - began < 5  # a hang guard
    assert 2 <= len(tries) <= 5, "3 or 4 where nothing else runs"
    assert tries == sorted(tries, reverse=True)


async def test_the_backoff_has_jitter_and_a_bound() -> None:
    policy = RetryPolicy(first_backoff_s=0.1, max_backoff_s=2.0)
    for tries, longest in ((1, 0.1), (2, 0.2), (5, 1.6), (9, 2.0), (500, 2.0)):
        waits = {policy.backoff_s(tries) for _ in range(200)}
        assert len(waits) > 100
        assert longest / 2 < max(waits) <= longest
        assert min(waits) < longest / 2


async def test_a_deadline_that_passes_while_a_stream_sends_is_a_deadline() -> None:
    """gRPC's core then reports an internal error of its own, which must not look like a defect of the server."""
    caller = Caller("127.0.0.1:1", what="trainer-0")

    async def attempt(timeout_s: float, left_s: float) -> None:
        await asyncio.sleep(timeout_s)
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
        )

    async def at_once(timeout_s: float, left_s: float) -> None:
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "a defect")

    with pytest.raises(errors.DeadlineError, match="trainer-0"):
        await caller.retry(attempt, deadline_s=0.05)
    with pytest.raises(errors.InternalError, match="a defect"):
        await caller.retry(at_once, deadline_s=5)
    await caller.close()
