"""What an engine says of a sample while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from argosy.types.ids import SampleId
from argosy.types.records import Completion, VersionRun


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens of one sample since the last run: what a stream sends at intervals, so that a dead server's partial answer
    can go on elsewhere."""

    sample_id: SampleId
    purpose: str
    offset: int
    """Index of the first token in the sample's output, tokens that came with the request included."""
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    versions: tuple[VersionRun, ...]
    """Run lengths over these tokens."""

    @property
    def key(self) -> str:
        """As `GenerateRequest.key`."""
        return f"{self.purpose}:{self.sample_id}"


Event = TokenRun | Completion
Deliver = Callable[[Event], None]
"""Called on the engine's thread."""
