"""Cutting an over-long prompt to a limit, as verl's `data.truncation` names the ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

TRUNCATIONS = ("error", "left", "right", "middle")


def truncate(ids: npt.NDArray[Any], limit: int, how: str) -> npt.NDArray[Any]:
    """At most `limit` of `ids`: "left" cuts at the left (keeps the last), "right" at the right, "middle" in the middle.

    >>> row = np.arange(5)
    >>> truncate(row, 3, "left").tolist(), truncate(row, 3, "right").tolist(), truncate(row, 3, "middle").tolist()
    ([2, 3, 4], [0, 1, 2], [0, 3, 4])
    """
    if len(ids) <= limit:
        return ids
    if how == "left":
        return ids[len(ids) - limit :]
    if how == "right":
        return ids[:limit]
    if how == "middle":
        head = limit // 2
        return np.concatenate([ids[:head], ids[len(ids) - (limit - head) :]])
    raise ValueError(f"truncation must be left, right or middle, got {how!r}")
