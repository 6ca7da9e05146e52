"""What some losses must know of the whole mini-batch, as a column made before it is cut.

"The 0.02 % of tokens with the largest covariance" means those of the mini-batch that makes one optimizer step. Taken
anew from each micro-batch, as verl does, it would be another set of tokens with another micro-batch size or number of
ranks. So a loss that needs such a statistic has a function that sees all tokens at once and answers with one number per
token; the trainer puts them into the column COLUMN, which is cut and spread like every other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from argosy.types.ragged import Ragged

COLUMN = "mini_batch_column"
"""Its name in a TrajectoryBatch."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """All N response tokens of one optimizer step; float64 where the text says nothing else."""

    log_probs: Floats
    """[N], under the weights that the step starts from."""
    old_log_probs: Floats
    """[N]."""
    advantages: Floats
    """[N]."""
    response_mask: Ragged
    """[N] int8."""
    keys: npt.NDArray[np.uint64]
    """[N], of `token_keys`: for choices at random, and to order equals."""

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        """[N]."""
        return np.asarray(self.response_mask.values != 0)


def covariance(batch: MiniBatch) -> Floats:
    """(A - mean A) · (log π - mean log π) over the trained tokens, [N]; -inf at the others.

    The part of each token in the covariance of log π and A, which drives the entropy (Cui et al. 2025,
    arXiv:2505.22617, §3).
    """
    trained = batch.trained
    found = np.full(len(trained), -np.inf)
    if trained.any():
        advantages, log_probs = batch.advantages[trained], batch.log_probs[trained]
        found[trained] = (advantages - advantages.mean()) * (log_probs - log_probs.mean())
    return found


def at_least_one(share: float, count: int) -> int:
    """⌊share · count⌋, but 1 where that is 0 and there is something to choose from."""
    return min(count, max(1, int(share * count)))


def smallest(keys: npt.NDArray[np.uint64], among: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """The `count` tokens with the smallest keys of those `among`, as flags [N]; all of them if they are fewer."""
    places = np.flatnonzero(among)
    if len(places) > count:
        places = places[np.argpartition(keys[places], count - 1)[:count]] if count else places[:0]
    chosen = np.zeros(len(keys), np.bool_)
    chosen[places] = True
    return chosen


def largest(values: Floats, keys: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.bool_]:
    """The `count` largest values as flags [N]; of equal ones at the border, those with the smallest keys."""
    if count == 0:
        return np.zeros(len(values), np.bool_)
    border = np.partition(values, len(values) - count)[len(values) - count]
    above = np.asarray(values > border)
    return np.asarray(above | smallest(keys, values == border, count - int(above.sum())))
