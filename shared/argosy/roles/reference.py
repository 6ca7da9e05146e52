"""The reference role: log-probs of given tokens under frozen weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from argosy.types.batch import TrajectoryBatch


class Reference(Protocol):
    """One reference server (or the frozen model in this process)."""

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """A batch with the same sample ids and response_ids and the named columns, one value per response token.

        Columns: "log_probs" (of logits / temperature), "entropy" (nats), "sum_pi_squared" (Σ_v π_v²).
        """
        ...
