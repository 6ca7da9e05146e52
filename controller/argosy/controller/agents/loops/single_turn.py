"""One answer to the prompt: what a run without agents does too."""

from __future__ import annotations

from argosy.controller.agents.episode import Episode
from argosy.controller.agents.loops.base import AgentLoop


class SingleTurnAgent(AgentLoop):
    """The policy speaks once."""

    async def run(self, episode: Episode) -> None:
        """See AgentLoop."""
        await episode.generate()
