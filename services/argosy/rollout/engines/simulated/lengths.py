"""How long answers are, told as a hazard: the probability that a sample ends at a position, given that it got there."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Hazard = npt.NDArray[np.float64]


def hazard_of(length: str, mean: float, spread: float, count: int) -> Hazard:
    """[count] probabilities in [0, 1]; position i ends a sample of i + 1 tokens.

    Sampling the end position by position with them is the same as drawing the length from the distribution at once, and
    gives each end token a log-prob. Where the distribution has no mass left, the hazard is 1.

    >>> hazard_of("fixed", 3, 0, 5).tolist()
    [0.0, 0.0, 1.0, 1.0, 1.0]
    >>> hazard_of("uniform", 2, 1, 3).round(3).tolist()
    [0.333, 0.5, 1.0]

    Args:
        length: A name in `options.LENGTHS`.
        mean: Tokens, ≥ 1.
        spread: Tokens; see SimulatedOptions.length_spread.
        count: Positions.
    """
    if length == "geometric":
        return np.full(count, 1 / mean)
    steps = np.arange(count + 1)
    if length == "fixed":
        below = (steps >= round(mean)).astype(np.float64)
    elif length == "uniform":
        low, high = max(1, round(mean - spread)), max(1, round(mean + spread))
        below = ((steps - low + 1) / (high - low + 1)).clip(0, 1)
    else:
        below = _lognormal_below(mean, spread, count)
    left = 1 - below  # P(length > i)
    with np.errstate(divide="ignore", invalid="ignore"):
        hazard = np.where(left[:-1] > 0, (below[1:] - below[:-1]) / left[:-1], 1.0)
    return np.asarray(hazard.clip(0, 1))


def _lognormal_below(mean: float, spread: float, count: int) -> npt.NDArray[np.float64]:
    """P(length ≤ i) for i in 0 … count; continuous lengths are rounded up."""
    variance = math.log1p((spread / mean) ** 2)
    if variance == 0:
        return (np.arange(count + 1) >= round(mean)).astype(np.float64)
    mu = math.log(mean) - variance / 2
    scale = math.sqrt(2 * variance)
    return np.array([0.0, *((1 + math.erf((math.log(i) - mu) / scale)) / 2 for i in range(1, count + 1))])
