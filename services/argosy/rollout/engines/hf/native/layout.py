"""The structures that `decode.cpp` reads, field for field."""

from __future__ import annotations

import ctypes

LANES = 16
"""Rows of a step are padded to a multiple of it."""
TILE_DEPTH = 32
"""Products in bfloat16 take their depth in steps of it."""
CDF_BLOCK = 256
"""Tokens per block of the sampler's two-level inverse CDF."""
HEAD_SIZES = frozenset({16, 32, 64, 96, 128})


class LayerStruct(ctypes.Structure):
    """ArgosyLayer: addresses of one layer's weights."""

    _fields_ = [
        ("qkv", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("qkv_bias", ctypes.c_void_p),
        ("out_bias", ctypes.c_void_p),
        ("input_norm", ctypes.c_void_p),
        ("post_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("window", ctypes.c_int64),
    ]


class ModelStruct(ctypes.Structure):
    """ArgosyModel."""

    _fields_ = [
        ("layers", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_size", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("vocab", ctypes.c_int64),
        ("is_bf16", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("embedding", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("head", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("layer", ctypes.POINTER(LayerStruct)),
    ]


class PassStruct(ctypes.Structure):
    """ArgosyPass."""

    _fields_ = [
        ("rows", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("most_tokens", ctypes.c_int64),
        ("ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("layer_step", ctypes.c_void_p),
        ("to_values", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
    ]


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the functions' types."""
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    model = ctypes.POINTER(ModelStruct)
    library.argosy_scratch_size.argtypes = [model, size, size, size]
    library.argosy_scratch_size.restype = size
    library.argosy_can_bf16.argtypes = []
    library.argosy_can_bf16.restype = ctypes.c_int
    library.argosy_run.argtypes = [model, ctypes.POINTER(PassStruct)]
    library.argosy_run.restype = None
    library.argosy_draw.argtypes = [pointer, size, size, size, *[pointer] * 6]
    library.argosy_draw.restype = None
