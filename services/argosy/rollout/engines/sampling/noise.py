"""Sampling noise as a pure function of (seed, purpose, sample id, token position).

No generator state exists, so a sample draws the same tokens on every server, in every batch and after a move to another
server, and validation can't move training's random stream (case D14).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from argosy.types.ids import SampleId

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def noise_key(seed: int, purpose: str, sample_id: SampleId) -> int:
    """64 bits that name one sample's noise.

    >>> noise_key(7, "train", SampleId(0, 1, 0)) == noise_key(7, "train", SampleId(0, 1, 1))
    False
    """
    text = f"{seed}\0{purpose}\0{sample_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def uniforms(keys: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """One number in (0, 1) per (key, token position), [B]; splitmix64 (Steele, Lea, Flood 2014) as a counter hash."""
    with np.errstate(over="ignore"):
        state = keys + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state = state ^ (state >> np.uint64(31))
    # 53 bits fill a float64's mantissa; the half keeps 0 and 1 out.
    return np.asarray(((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
