"""What a backend hands out for a checkpoint, and takes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class BackendState:
    """Everything that a resume needs, as views that must not be written to."""

    model: Mapping[str, Tensor]
    """Parameters and persistent buffers by name; tied names once."""
    optimizer: Mapping[str, Tensor]
    """"{key}/{parameter name}"; empty before the first step."""
    rng: Mapping[str, Tensor]
    """"cpu", and "cuda" on a GPU: uint8."""
    counters: Mapping[str, int]
    """skipped_steps, consecutive_skips."""
