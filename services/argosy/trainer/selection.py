"""The mini-batch column: what some losses must know of all tokens of an optimizer step, made before it is cut.

See `argosy.algorithms.losses.mini_batch` for why. It needs the log-probs under the weights that the step starts from.
Old log-probs are just those in the first optimizer step of an update, if the trainer computed them; otherwise it takes
one more forward pass without gradient over the mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from argosy.algorithms.losses import WHOLE_BATCH, MiniBatch, needs_mini_batch
from argosy.algorithms.losses.mini_batch import COLUMN
from argosy.algorithms.losses.token_keys import token_keys
from argosy.trainer.objective import check_columns
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError
from argosy.types.ragged import Ragged
from argosy.types.records import GlobalNormalizer, LossConfig

LogProbs = Callable[[TrajectoryBatch, float], Ragged]
"""(batch, temperature) → log-probs [N] of its response tokens under today's weights, without gradient."""


def with_mini_batch_column(
    batch: TrajectoryBatch, loss: LossConfig, log_probs: LogProbs, draw: tuple[int, ...], *, fresh: bool
) -> TrajectoryBatch:
    """The whole mini-batch of one optimizer step with the column that `loss` needs, if it needs one and lacks it.

    Args:
        batch: Every sequence of the mini-batch.
        loss: Its objective.
        log_probs: The pass.
        draw: (seed, step, …), which with sample and token name the random choices.
        fresh: The weights are still those of the update's begin.
    """
    if batch.has(COLUMN) or not needs_mini_batch(loss):
        return batch
    check_columns(batch, loss)
    old = batch.ragged("old_log_probs") if batch.has("old_log_probs") else None
    current = old if fresh and old is not None and not _of_rollout(batch, old) else log_probs(batch, loss.temperature)
    mask = batch.ragged("response_mask")
    view = MiniBatch(
        log_probs=current.values.astype(np.float64),
        old_log_probs=(current if old is None else old).values.astype(np.float64),
        advantages=batch.ragged("advantages").values.astype(np.float64),
        response_mask=mask,
        keys=token_keys(batch.sample_ids, mask.lengths, *draw),
    )
    column = WHOLE_BATCH[loss.loss_mode](view, loss)
    return batch.with_column(COLUMN, Ragged(column.astype(np.float32), mask.offsets))


def check_whole(batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer) -> None:
    """Refuse a part of a mini-batch for a loss that needs all of it and a column that wasn't sent."""
    if batch.has(COLUMN) or not needs_mini_batch(loss):
        return
    trained = float(batch.ragged("response_mask").values.sum())
    if trained != normalizer.token_count:
        raise InvalidInputError(
            f"policy_loss.loss_mode={loss.loss_mode} needs statistics of the whole mini-batch, but this part has "
            f"{trained:g} of its {normalizer.token_count:g} trained tokens: send the mini-batch in one call, or use "
            "Update"
        )


def _of_rollout(batch: TrajectoryBatch, old: Ragged) -> bool:
    """Whether the old log-probs are the rollout's (bypass), not the trainer's own."""
    name = "rollout_log_probs"
    return batch.has(name) and np.array_equal(old.values, batch.ragged(name).values)
