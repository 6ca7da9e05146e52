"""How often a run went back to its last checkpoint, why, and when that is enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.controller.launch import SetbackError
from argosy.controller.life import Watchers
from argosy.controller.prepare import PreparedRun
from argosy.controller.recovery import Checkpoint, read_checkpoint
from argosy.controller.rescue import rescue
from argosy.controller.stages.validation import ValidationResult
from argosy.membership.interface import Membership
from argosy.types.errors import ArgosyError

log = logging.getLogger(__name__)


class Setbacks:
    """Over the lives of one run under one leader.

    The launcher bounds the deaths of an hour. This bounds those without a new checkpoint in between, however far apart
    they are: a trainer that dies at the same step each time must end the run.

    Args:
        prepared: The run; it is pointed at the checkpoint to go on from.
        limit: Setbacks without a new checkpoint.
    """

    def __init__(self, prepared: PreparedRun, limit: int) -> None:
        self._prepared = prepared
        self._limit = limit
        self._started_from = prepared.checkpoint
        self._reached: Path | None = None
        self._fruitless: list[SetbackError] = []
        self.cause = ""
        """Of the present life; empty for the first."""
        self.first_validation: ValidationResult | None = None
        self.last_state: Mapping[str, Any] | None = None
        """The controller's, of the last step that the life before has finished; None where there was none."""
        self._newer: SetbackError | None = None

    async def note(self, setback: SetbackError, watchers: Watchers) -> None:
        """Go back: to the newest checkpoint that this start has saved, else to where it began. Raises the first cause
        after too many setbacks without a checkpoint."""
        newest = watchers.observer.last_checkpoint
        if newest != self._reached:
            self._reached, self._fruitless = newest, []
        self._fruitless.append(setback)
        if len(self._fruitless) > self._limit:
            log.error("%d times without a checkpoint in between: the run ends", len(self._fruitless))
            raise self._fruitless[0].cause
        checkpoint: Checkpoint | None = self._started_from
        if newest is not None:
            checkpoint = await asyncio.to_thread(read_checkpoint, newest)  # it may be large
        done = watchers.control.view.step
        self.cause = setback.message
        self._newer = setback if setback.member_id.startswith("trainer") else None
        self._prepared.reopen(checkpoint)
        step = 0 if checkpoint is None else checkpoint.step
        watchers.control.unsaved_steps = 0  # what was finished since then is lost
        watchers.control.at_stage("recovering")
        watchers.screen.stage(step, "recovering")
        log.warning("%s; the run goes back from step %d to step %d", setback.message, done, step)
        watchers.screen.note(f"{setback.message}; going back from step {done} to step {step}")

    async def take_newer_weights(self, membership: Membership, watchers: Watchers) -> None:
        """With argosy.restart.weights=rollout, go on from the last finished step after all if a rollout server serves
        its weights. Whatever stands in the way of that is told, and the checkpoint stays what is gone on from."""
        prepared, checkpoint, state = self._prepared, self._prepared.checkpoint, self.last_state
        wanted = prepared.config.argosy.restart.weights == "rollout" and self._newer is not None
        if not wanted or checkpoint is None or state is None or int(state["step"]) <= checkpoint.step:
            return
        try:
            rescued = await rescue(membership, prepared.run_dir, checkpoint, state)
        except ArgosyError as error:
            log.warning("the trainer has the checkpoint's weights, no newer ones: %s", error)
            return
        self.cause += (
            f"; its weights of step {rescued.step} come from a rollout server, its optimizer of {checkpoint.step}"
        )
        prepared.reopen(rescued)
        watchers.screen.note(f"weights of step {rescued.step} are on a rollout server: going on from there")
