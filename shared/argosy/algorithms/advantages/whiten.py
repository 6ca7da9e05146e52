"""Advantages of a whole batch brought to mean 0 and variance 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

VARIANCE_EPSILON = 1e-8


def whiten(values: Floats) -> Floats:
    """(x − mean) / sqrt(var + 1e-8) with the unbiased variance, over trained tokens [M]; fewer than two become 0."""
    if len(values) < 2:
        return np.zeros_like(values)
    return np.asarray((values - values.mean()) / np.sqrt(values.var(ddof=1) + VARIANCE_EPSILON), np.float64)
