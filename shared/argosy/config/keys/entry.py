"""What the key table says about one key of verl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Honoured:
    """The key does here what it does in verl."""

    effect: str
    """One sentence: what a user sees change when the key changes."""
    targets: tuple[str, ...] = ()
    """Our paths that take the value, where this is another spelling of one of our keys; else the key itself."""


@dataclass(frozen=True)
class Refused:
    """The key asks for something that the result depends on and that isn't there: the run doesn't start."""

    reason: str
    """What is missing, and what to do instead."""
    neutral: tuple[Any, ...] = ()
    """Values that ask for what is done anyway; these pass."""


@dataclass(frozen=True)
class Warned:
    """The key has nothing to act on here and can't change the result: the run starts and says so."""

    reason: str
    """Why it has no meaning here, and what acts in its place if anything does."""
    neutral: tuple[Any, ...] = ()
    """Values that ask for what is done anyway; these pass without a warning."""
    refused_values: Mapping[Any, str] = field(default_factory=dict)
    """Values that the result would depend on: refused, each with its reason."""


Entry = Honoured | Refused | Warned
