"""Seconds of a step's stages, by verl's names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed(timing: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds of a block to a timing entry, also when it fails."""
    started = time.perf_counter()
    try:
        yield
    finally:
        timing[name] = timing.get(name, 0.0) + time.perf_counter() - started
