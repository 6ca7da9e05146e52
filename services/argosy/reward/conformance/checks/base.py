"""What a check is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from argosy.reward.conformance.wire import Wire


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the contract wants. `run` raises CheckError, CheckWarning or CheckSkipped if it isn't so."""

    name: str
    about: str
    """What is wanted, in a line."""
    advice: str
    """What to do when it isn't so."""
    run: Callable[[Wire], Awaitable[None]]
    needed: bool = False
    """Whether the later checks make no sense without it."""
