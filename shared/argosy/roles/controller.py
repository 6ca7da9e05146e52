"""What a controller shows of its run, and how a person steers it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from argosy.types.records import Member, RunStatus, ScaleChange, ServerCount


class RunController(Protocol):
    """The run that a controller leads (or a client of such a controller)."""

    async def get_run(self) -> RunStatus:
        """The run as it is now."""
        ...

    def watch_run(self) -> AsyncIterator[RunStatus]:
        """The run as it is now, then again each time it changes, until it ends. A slow reader gets the newest state."""
        ...

    async def list_members(self, role: str = "") -> Sequence[Member]:
        """The members of the fleet, in order of role and member_id; only those of a role, if one is named."""
        ...

    async def pause(self) -> RunStatus:
        """Stand still after the step that the loop is in. Nothing happens if it does already."""
        ...

    async def resume(self) -> RunStatus:
        """Go on. Nothing happens if it wasn't paused."""
        ...

    async def stop(self, reason: str = "") -> RunStatus:
        """Save a checkpoint after the step that the loop is in, and end."""
        ...

    async def scale(self, wanted: Sequence[ServerCount]) -> Sequence[ScaleChange]:
        """Start or drain rollout and reward servers on the launcher's machine, until there are as many as asked for.

        Returns when that has begun. Raises InvalidInputError or StateError, with nothing changed, where it can't be.
        """
        ...
