"""How often a run went back to its last checkpoint, why, and when that is enough."""

from __future__ import annotations

import logging
from pathlib import Path

from argosy.controller.launch import SetbackError
from argosy.controller.life import Watchers
from argosy.controller.prepare import PreparedRun
from argosy.controller.recovery import Checkpoint, read_checkpoint
from argosy.controller.stages.validation import ValidationResult

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

    def note(self, setback: SetbackError, watchers: Watchers) -> None:
        """Go back: to the newest checkpoint that this start has saved, else to where it began. Raises the first cause
        after too many setbacks without a checkpoint."""
        newest = watchers.observer.last_checkpoint
        if newest != self._reached:
            self._reached, self._fruitless = newest, []
        self._fruitless.append(setback)
        if len(self._fruitless) > self._limit:
            log.error("%d times without a checkpoint in between: the run ends", len(self._fruitless))
            raise self._fruitless[0].cause
        checkpoint: Checkpoint | None = self._started_from if newest is None else read_checkpoint(newest)
        done = watchers.control.view.step
        self.cause = setback.message
        self._prepared.reopen(checkpoint)
        step = 0 if checkpoint is None else checkpoint.step
        watchers.control.unsaved_steps = 0  # what was finished since then is lost
        watchers.control.at_stage("recovering")
        watchers.screen.stage(step, "recovering")
        log.warning("%s; the run goes back from step %d to step %d", setback.message, done, step)
        watchers.screen.note(f"{setback.message}; going back from step {done} to step {step}")
