"""Who answers prompts: the rollout servers as they are, or agent loops over them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from argosy.types.records import Completion, GenerateRequest, Prompt

Sink = Callable[[Completion], Awaitable[None]]


class Answers(Protocol):
    """Answers requests for some prompts."""

    async def generate(self, requests: Sequence[GenerateRequest], sink: Sink) -> None:
        """Hand each request's completion to `sink`, exactly once, as it ends."""
        ...

    async def generate_one(self, request: GenerateRequest) -> Completion:
        """One whole sample, final whatever its finish reason."""
        ...


class Answerer(Protocol):
    """`RolloutStage` answers with one turn, an `AgentStage` over it leads conversations."""

    def of(self, prompts: Sequence[Prompt]) -> Answers:
        """For requests of these prompts."""
        ...
