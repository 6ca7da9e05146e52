"""Holds full collections of garbage off while a program starts, which cost a fifth of the time that its imports take.

Python begins one whenever a quarter more objects are there than at the last: a dozen of them while torch and
transformers are imported, none of which frees anything.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30


@contextmanager
def no_full_collections() -> Iterator[None]:
    """None while the block runs; young garbage is collected as ever. For one block at a time in a process."""
    usual = gc.get_threshold()
    gc.set_threshold(*usual[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
