"""The engine's library: `decode.cpp`, compiled on first use (`argosy.native`)."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from argosy.native.compiler import NativeSource, load
from argosy.rollout.engines.hf.native.layout import declare

SOURCE = NativeSource(Path(__file__).with_name("decode.cpp"), "the compiled passes")


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The library, compiled if it isn't kept already; None if it can't run or be made here (the log says why)."""
    library = load(SOURCE)
    if library is not None:
        declare(library)
    return library
