"""Trajectory batches for the policy and the reference."""

from __future__ import annotations

import numpy as np

from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged


def batch_of(count: int = 6, seed: int = 0, *, advantages: bool = True) -> TrajectoryBatch:
    """Random prompts and responses of different lengths, with what an update needs."""
    draw = np.random.default_rng(seed)
    responses = [draw.integers(3, 250, draw.integers(2, 9)).tolist() for _ in range(count)]
    prompts = [draw.integers(3, 250, draw.integers(1, 6)).tolist() for _ in range(count)]
    ids = [SampleId(0, position // 2, position % 2) for position in range(count)]
    batch = TrajectoryBatch.build(ids, prompts, responses)
    if not advantages:
        return batch
    lengths = batch.ragged("response_ids").lengths
    total = int(lengths.sum())
    for name, values in {
        "old_log_probs": -draw.random(total) - 4.0,
        "advantages": draw.normal(size=total),
        "ref_log_probs": -draw.random(total) - 4.0,
    }.items():
        batch = batch.with_column(name, Ragged.from_lengths(values.astype(np.float32), lengths))
    return batch
