"""A bound on the time that something may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from argosy.types.errors import DeadlineError


@contextlib.asynccontextmanager
async def in_time(seconds: float, message: Callable[[], str]) -> AsyncIterator[None]:
    """What is done within it ends with DeadlineError, that says `message()`, when the time is up."""
    limit = asyncio.timeout(max(0.0, seconds))
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineError(message()) from None
