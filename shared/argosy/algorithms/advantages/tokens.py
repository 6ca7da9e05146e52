"""Only the tokens that are trained, and sums along them.

A tool's or user's token between two sampled ones is no step of the policy: it must neither be discounted over nor
bootstrapped from, and a reward that lands on it must not be lost (case B13). So estimators that walk along a response
first drop every other token; what was rewarded in between counts for the sampled token before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from argosy.algorithms.advantages.inputs import AdvantageInputs
from argosy.types.ragged import Ragged

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TrainedTokens:
    """Where the M trained tokens are among the N response tokens."""

    mask: npt.NDArray[np.bool_]
    """Sampled by the policy, and the sample has a score, [N]."""
    offsets: npt.NDArray[np.int64]
    """Where each sample starts among the M trained tokens, and M at the end, [B + 1]."""
    full_offsets: npt.NDArray[np.int64]
    """Where each sample starts among the N tokens, [B + 1]."""

    def pick(self, column: Ragged) -> Ragged:
        """The trained tokens' values of a column [N], float64 [M]."""
        return Ragged(column.values[self.mask].astype(np.float64), self.offsets)

    def fold(self, rewards: Ragged) -> Ragged:
        """Rewards [N] as float64 [M]; a reward between trained tokens goes to the one before it, or else the first."""
        owner = np.repeat(np.arange(len(rewards)), rewards.lengths)  # [N] which sample
        seen = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.mask)])[1:] - self.offsets[owner]  # [N]
        kept = np.diff(self.offsets)[owner] > 0  # [N]; a sample without a trained token has no place for a reward
        target = self.offsets[owner] + np.maximum(seen - 1, 0)  # [N] → one of M
        folded = np.bincount(target[kept], weights=rewards.values[kept], minlength=int(self.offsets[-1]))
        return Ragged(folded.astype(np.float64), self.offsets)

    def put(self, values: Floats) -> Ragged:
        """Values [M] back in their places among the response's tokens, float32 [N]; 0 elsewhere."""
        full = np.zeros(len(self.mask), np.float32)
        full[self.mask] = values
        return Ragged(full, self.full_offsets)


def trained_tokens(inputs: AdvantageInputs) -> TrainedTokens:
    """Which tokens of this batch are trained."""
    column = inputs.response_mask
    mask = (column.values != 0) & column.spread(inputs.judged)  # [N]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask)])  # [N + 1] trained tokens before each place
    return TrainedTokens(mask, before[column.offsets], column.offsets)


def discounted_to_go(column: Ragged, factor: float) -> Floats:
    """y_t = x_t + factor · y_{t+1} along each sequence of `column`, float64 [M].

    By doubling: after k rounds y holds the sum over 2^k tokens, so the Python loop runs log2(longest sequence) times.

    >>> discounted_to_go(Ragged.from_rows([[1.0, 0.0, 4.0], [2.0]], np.float64), 0.5).tolist()
    [2.0, 2.0, 4.0, 2.0]
    """
    total = column.values.astype(np.float64)  # a copy
    left = column.spread(column.offsets[1:]) - np.arange(len(total))  # [M] tokens from here to the sequence's end
    step = 1
    while step < int(column.lengths.max(initial=0)):
        total[:-step] += np.where(left[:-step] > step, factor**step * total[step:], 0.0)
        step *= 2
    return total


def broadcast(inputs: AdvantageInputs, scalar: Floats) -> Ragged:
    """One advantage per sample [B] on each of its trained tokens, float32 [N]."""
    mask = inputs.response_mask
    per_token = mask.spread(scalar) * (mask.values != 0)  # [N]
    return Ragged(per_token.astype(np.float32), mask.offsets)
