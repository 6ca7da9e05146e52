"""Small trainers and batches for tests of the trainer and of what talks to it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from argosy.modeling.loading import ModelSource
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.core import Trainer
from argosy.trainer.options import OptimizerOptions, TrainerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Mutation


def options_for(folder: Path, rate: float = 1e-3, **fields: object) -> TrainerOptions:
    defaults: dict[str, object] = {
        "model": ModelSource(str(folder), device="cpu"),
        "optimizer": OptimizerOptions(Schedule(rate)),
        "log_prob_chunk_tokens": 16,
        "update_limit": MicroBatchLimit(max_tokens=120),
        "log_prob_limit": MicroBatchLimit(max_tokens=120),
    }
    return TrainerOptions(**(defaults | fields))  # type: ignore[arg-type]


_request_numbers = itertools.count()


def mutation(expected_step: int | None = None, request_id: str | None = None, deadline_s: float = 60.0) -> Mutation:
    return Mutation("run", 1, request_id or f"request-{next(_request_numbers)}", deadline_s, expected_step)


def grouped_batch(group_count: int = 3, n: int = 4, seed: int = 0, **columns: float) -> TrajectoryBatch:
    """Groups of n samples of uneven lengths with uneven advantages; some response tokens are masked.

    `columns` adds per-token columns of a constant.
    """
    rng = np.random.default_rng(seed)
    ids, prompts, responses, masks, advantages = [], [], [], [], []
    for position in range(group_count):
        prompt = rng.integers(3, 250, int(rng.integers(2, 9))).tolist()
        for k in range(n):
            length = int(rng.integers(1, 20))
            ids.append(SampleId(0, position, k))
            prompts.append(prompt)
            responses.append(rng.integers(3, 250, length).tolist())
            masks.append([1, *(rng.random(length - 1) > 0.2).astype(int).tolist()])
            advantages.append([float(rng.normal())] * length)
    lengths = [len(row) for row in responses]
    constants = {name: Ragged.from_rows([[value] * n for n in lengths], np.float32) for name, value in columns.items()}
    return TrajectoryBatch.build(
        ids, prompts, responses, masks, advantages=Ragged.from_rows(advantages, np.float32), **constants
    )


async def with_own_log_probs(trainer: Trainer, batch: TrajectoryBatch, temperature: float = 1.0) -> TrajectoryBatch:
    """The batch with old_log_probs as the controller adds them."""
    answer = await trainer.compute_log_probs(batch, ["log_probs"], temperature=temperature, deadline_s=60)
    return batch.with_column("old_log_probs", answer.ragged("log_probs"))
