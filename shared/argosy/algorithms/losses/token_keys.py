"""A random number per response token that depends on the token alone: not on order, layout, ranks or a global state.

The mixing function is splitmix64's (Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators", OOPSLA),
applied once per part of the name, so equal names give equal numbers on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from argosy.types.ids import SampleId

Keys = npt.NDArray[np.uint64]

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def token_keys(samples: Sequence[SampleId], lengths: npt.NDArray[np.int64], *name: int) -> Keys:
    """Uniform 64-bit numbers [N] for (name…, sample, token position).

    Args:
        samples: Of the B sequences.
        lengths: Their response tokens, [B].
        name: What else tells this draw from others: seed, step …; not negative.
    """
    state: Keys = np.zeros(len(samples), np.uint64)
    for part in name:
        state = _mix(state, np.full(len(samples), part, np.uint64))
    for field in ("data_epoch", "position", "k", "attempt"):
        state = _mix(state, np.array([getattr(sample, field) for sample in samples], np.uint64))
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    position = np.arange(int(lengths.sum())) - starts  # in its own sequence
    return _mix(np.repeat(state, lengths), position.astype(np.uint64))


def _mix(state: Keys, part: Keys) -> Keys:
    mixed = (state ^ part) + _INCREMENT  # wraps around, as it should
    mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _FIRST
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _SECOND
    return np.asarray(mixed ^ (mixed >> _SHIFTS[2]), np.uint64)
