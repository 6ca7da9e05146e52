"""Trying again: only what may be repeated, only after errors that a repeat can mend, never past the total deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from argosy.roles.weights import SOURCE
from argosy.types.errors import ArgosyError, DeadlineError, OverloadedError, UnavailableError

Result = TypeVar("Result")

_RANDOM = random.Random()
"""Of its own: waiting must not move the generator that a deterministic run has seeded."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how long to wait between tries."""

    max_attempts: int = 5
    """All tries, the first included; 1 is no retry."""
    first_backoff_s: float = 0.1
    """Longest wait before the second try; doubles with each."""
    max_backoff_s: float = 2.0
    """Longest wait before any try, unless the server asks for more."""
    attempt_timeout_s: float | None = None
    """Longest time for one try; None: all that is left of the total deadline."""

    def backoff_s(self, tries: int) -> float:
        """A random wait after so many tries ("full jitter": all clients of a failed server don't return at once)."""
        return _RANDOM.uniform(0, min(self.max_backoff_s, self.first_backoff_s * 2.0 ** (tries - 1)))


NO_RETRY = RetryPolicy(max_attempts=1)


async def retry(
    attempt: Callable[[float, float], Awaitable[Result]],
    *,
    deadline_s: float,
    policy: RetryPolicy | None = None,
    what: str = "the call",
) -> Result:
    """Run `attempt(timeout_s, left_s)` until it succeeds: timeout_s is for this try, left_s what is left in all.

    Tries again after UnavailableError, OverloadedError (not before the server's RetryInfo), and a try's own timeout.
    Everything else is raised at once, also what the server blames on its source of weights; so is the last error when
    the tries are used up, or when the wait would be longer than what is left. DeadlineError when the total deadline
    passes, after which nothing runs any more.
    """
    policy = policy or RetryPolicy()
    end = time.monotonic() + deadline_s
    last: ArgosyError | None = None
    for tries in range(1, policy.max_attempts + 1):
        left_s = end - time.monotonic()
        if left_s <= 0:
            break
        timeout_s = left_s if policy.attempt_timeout_s is None else min(left_s, policy.attempt_timeout_s)
        try:
            return await asyncio.wait_for(attempt(timeout_s, left_s), timeout_s + _GRACE_S)
        except TimeoutError:
            last = DeadlineError(f"{what}: no answer within {timeout_s:.3g} s")
        except (UnavailableError, OverloadedError, DeadlineError) as error:
            if SOURCE in error.metadata:
                raise  # somebody behind the server: whoever asked may know a better one
            last = error
        wait_s = policy.backoff_s(tries)
        if isinstance(last, OverloadedError):
            wait_s += last.retry_after_s
        left_s = end - time.monotonic()
        if left_s <= 0:
            break
        if tries == policy.max_attempts or wait_s >= left_s:
            raise last
        await asyncio.sleep(wait_s)
    raise DeadlineError(
        f"{what}: not done within the total deadline of {deadline_s:.3g} s"
        + (f"; the last try said: {last.message}" if last is not None else ""),
        deadline_s=str(deadline_s),
    ) from last


_GRACE_S = 1.0
"""gRPC ends a call at its timeout by itself; this ends a try that does not."""
