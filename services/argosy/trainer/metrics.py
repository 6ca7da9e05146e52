"""From the metrics of optimizer steps to those of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from argosy.algorithms.values import explained_variance
from argosy.modeling.value_model import VALUE_COLUMN
from argosy.trainer.backends.compute import RETURNS_COLUMN
from argosy.types.batch import TrajectoryBatch

Metrics = dict[str, float]

NO_LOSS: Mapping[str, Metrics] = {
    "actor": {
        "actor/pg_loss": 0.0,
        "actor/pg_clipfrac": 0.0,
        "actor/pg_clipfrac_lower": 0.0,
        "actor/ppo_kl": 0.0,
    },
    "critic": {"critic/vf_loss": 0.0, "critic/vf_clipfrac": 0.0, "critic/vpred_mean": 0.0},
}
"""By the metrics' prefix: of a batch in which no row can move the weights. Exact zeros, so that the names are there."""

SUMMED = frozenset({"trained_tokens", "skipped_steps"})
"""Metrics (after the prefix) that are counts over the whole update; the others are means over its optimizer steps."""


def combine(steps: Sequence[Metrics], prefix: str) -> Metrics:
    """One update's metrics from its optimizer steps'. NaN stays NaN (case H9)."""
    names = dict.fromkeys(name for step in steps for name in step)
    combined: Metrics = {}
    for name in names:
        values = [step[name] for step in steps if name in step]
        total = math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
        combined[name] = total if name.removeprefix(f"{prefix}/") in SUMMED else total / len(values)
    return combined | {f"{prefix}/optimizer_steps": float(len(steps))}


def explained(batch: TrajectoryBatch) -> Metrics:
    """How well a critic's values from before the update explain the returns, over the whole batch.

    Empty where there are no values, or the share has no meaning (returns that are all equal).
    """
    if not batch.has(VALUE_COLUMN):
        return {}
    values, returns = batch.ragged(VALUE_COLUMN).values, batch.ragged(RETURNS_COLUMN).values
    share = explained_variance(values, returns, batch.ragged("response_mask").values)
    return {"critic/vf_explained_var": share} if math.isfinite(share) else {}
