"""Where a run is, between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.controller.ledger import LedgerCut
from argosy.types.ids import PolicyVersion


@dataclass(slots=True)
class LoopState:
    """Where the run is; what `state()` returns goes into a checkpoint."""

    step: int = 0
    version: PolicyVersion | None = None
    sampler_state: Mapping[str, Any] = field(default_factory=dict)
    reward_state: Mapping[str, Any] = field(default_factory=dict)
    stream: Mapping[str, Any] = field(default_factory=dict)
    """Groups under way, with the tokens that they have; empty where there never are any between two steps."""
    entries: Sequence[Mapping[str, Any]] = ()
    """What the ledger has of their samples, and of those that were dropped since the cut."""
    cut: LedgerCut = field(default_factory=lambda: LedgerCut(0, ""))
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the step, as far as they are known when it is saved: a crash may come before they are logged."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Of the run, at the end of the step."""
    kl_coef: float = 0.0
    """Of KL in the reward, when the step's books were closed."""
    noted_step: int = -1
    """Which step that was: the data order and the running figures here are of that moment too."""
