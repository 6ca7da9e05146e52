"""ℓ and sums over trained tokens, shared by weights, rejection and metrics. Letters: B sequences, N response tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from argosy.types.ragged import Ragged

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LOG_RATIO_LIMIT = 20.0
"""|ℓ| that enters an exponential; e^20 is beyond every threshold that makes sense, and stays finite when squared."""


@dataclass(frozen=True, slots=True, eq=False)
class LogRatios:
    """ℓ = log π_old − log μ of the sampled tokens, in float64 whatever the columns' type."""

    values: Floats
    """ℓ, [N]; 0 where a token is not trained, whatever stood there."""
    trained: Flags
    """[N]: the response mask."""
    offsets: npt.NDArray[np.int64]
    """[B + 1]."""

    @classmethod
    def of(cls, old_log_probs: Ragged, rollout_log_probs: Ragged, response_mask: Ragged) -> LogRatios:
        """From three ragged columns of equal lengths."""
        trained = response_mask.values != 0
        with np.errstate(invalid="ignore"):  # -inf - -inf at tokens that are not trained
            difference = old_log_probs.values.astype(np.float64) - rollout_log_probs.values.astype(np.float64)
        return cls(np.where(trained, difference, 0.0), trained, response_mask.offsets)

    @property
    def clamped(self) -> Floats:
        """ℓ within ±LOG_RATIO_LIMIT, [N]."""
        return np.asarray(np.clip(self.values, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), np.float64)

    @property
    def counts(self) -> Floats:
        """Trained tokens of each sequence, [B]."""
        return self.sums(self.trained)

    @property
    def live(self) -> Flags:
        """Sequences with a trained token, [B]."""
        return self.counts > 0

    def sums(self, values: npt.NDArray[np.generic]) -> Floats:
        """Σ over each sequence's trained tokens of per-token values [N], [B]."""
        return Ragged(np.where(self.trained, values, 0.0), self.offsets).segment_sum()

    def means(self, values: npt.NDArray[np.generic]) -> Floats:
        """Mean over each sequence's trained tokens, [B]; 0 where there is none."""
        return np.asarray(self.sums(values) / np.maximum(self.counts, 1.0), np.float64)

    def maxima(self, values: Floats) -> Floats:
        """Largest of each sequence's trained tokens, [B]; 0 where there is none."""
        found = np.full(len(self.offsets) - 1, -np.inf)
        np.maximum.at(found, self.owner[self.trained], values[self.trained])
        return np.where(self.live, found, 0.0)

    def spread(self, per_sequence: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Per-sequence values [B] at each token, [N]."""
        return np.repeat(per_sequence, np.diff(self.offsets))

    @property
    def owner(self) -> npt.NDArray[np.int64]:
        """Sequence of each token, [N]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
