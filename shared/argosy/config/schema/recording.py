"""`argosy.record.*` and `argosy.replay.*`: rollouts as files, and training from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordConfig:
    """Whether the rollouts that are trained on are kept, with all that a replay needs."""

    enable: bool = False
    """Write each step's prompts, answers (ids, log-probs, versions, masks) and outcomes as one file. `argosy rollout`
    always does."""
    path: str | None = None
    """The folder; null: record/ in the run folder. A folder with another run's record is refused."""
    max_gb: float = 64.0
    """Gigabytes (10^9 bytes) at which a record ends with a warning; the run goes on. 0: no limit."""


@dataclass(frozen=True)
class ReplayConfig:
    """Training from a record, without rollout and reward servers."""

    path: str | None = None
    """A folder with a record, or the folder of a run that has one; null: rollouts are generated. It must be of the same
    vocabulary, samples per prompt and prompts per step, and have as many steps as are wanted."""
