"""The library's functions, for ctypes."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from argosy.native.compiler import AVX512, NativeSource, load

SOURCE = NativeSource(
    Path(__file__).with_name("moving.cpp"), "copies checked on their way", AVX512 | {"pclmulqdq", "vpclmulqdq"}
)
_Pointer, _Size = ctypes.c_void_p, ctypes.c_int64


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The library; None where it can't be made or run (the log says why)."""
    library = load(SOURCE)
    if library is not None:
        places: list[Any] = [_Pointer, _Pointer, _Size, _Pointer]
        library.argosy_check.argtypes, library.argosy_check.restype = [_Pointer, *places], None
        library.argosy_copy.argtypes, library.argosy_copy.restype = [_Pointer, _Pointer, *places], None
    return library
