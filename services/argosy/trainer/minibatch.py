"""How an update walks over its batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.records import UpdateConfig


def mini_batches(batch: TrajectoryBatch, config: UpdateConfig, step: int) -> Iterator[np.ndarray[Any, Any]]:
    """Row numbers of each optimizer step, in order.

    Rows are taken in sample-id order, so the order of arrival changes nothing. Shuffling is keyed by (seed, step, ppo
    epoch). The last mini-batch of an epoch may be smaller; its own size is its denominator.
    """
    if config.mini_batch_size < 1 or config.ppo_epochs < 1:
        raise InvalidInputError(
            f"mini_batch_size and ppo_epochs must be at least 1, got {config.mini_batch_size}, {config.ppo_epochs}"
        )
    if len(batch) == 0:
        raise InvalidInputError("an update needs at least one sample, got an empty batch")
    ids = batch.sample_ids
    order = np.asarray(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    for epoch in range(config.ppo_epochs):
        rows = order
        if config.shuffle:
            rows = np.random.default_rng([config.seed, step, epoch]).permutation(order)
        for start in range(0, len(rows), config.mini_batch_size):
            yield rows[start : start + config.mini_batch_size]
