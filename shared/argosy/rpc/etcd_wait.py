"""Waits for etcd while a service starts: it may be away for minutes, just when a server that has died comes back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from argosy.types.errors import UnavailableError

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
_TELL_FACTOR = 4
Answer = TypeVar("Answer")


async def once_etcd_answers(ask: Callable[[], Awaitable[Answer]], what: str, patience_s: float) -> Answer:
    """What etcd answers, however often it has to be asked; told at growing intervals.

    Args:
        ask: One question.
        what: What can't be done meanwhile, as in "can't … yet".
        patience_s: How long that may go on; its last UnavailableError is raised then.
    """
    began = time.monotonic()
    tell_after_s = 0.0
    while True:
        try:
            return await ask()
        except UnavailableError as error:
            waited_s = time.monotonic() - began
            if waited_s > patience_s:
                raise
            if waited_s >= tell_after_s:
                tell_after_s = max(_RETRY_S, waited_s) * _TELL_FACTOR
                _LOG.warning("can't %s yet, for %.1f s now: %s", what, waited_s, error)
            await asyncio.sleep(_RETRY_S)
