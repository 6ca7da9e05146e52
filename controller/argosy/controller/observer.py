"""What is made of a run's events: the screen, the loggers, the dumps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from argosy.config import Config
from argosy.controller.console import RunConsole
from argosy.controller.dumps import write_dump
from argosy.controller.fence import OPEN, Fence
from argosy.controller.loggers import MetricLogger
from argosy.controller.producing import StepRecord
from argosy.controller.report import held_out
from argosy.controller.stages.validation import ValidationResult
from argosy.types.records import Prompt

log = logging.getLogger(__name__)


class RunObserver:
    """Implements the loop's `Observer`. A dump that can't be written costs one warning, not the run; what a leader that
    was shut out tells is FencedError."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        console: RunConsole,
        loggers: Sequence[MetricLogger],
        fence: Fence = OPEN,
    ) -> None:
        self._fence = fence
        self._config = config
        self._run_dir = run_dir
        self._console = console
        self._loggers = loggers
        self._dumps_work = True
        self.last_checkpoint: Path | None = None
        self.last_metrics: Mapping[str, float] = {}

    def begin(self, step: int, abandoned: str, metrics: Mapping[str, float]) -> None:
        """The run goes on after `step`, whose metrics its checkpoint has; later ones of an earlier start are void."""
        with self._fence.writing():
            for logger in self._loggers:
                logger.begin(step, abandoned, metrics)

    def stage(self, step: int, name: str) -> None:
        """Show what the run waits for."""
        self._console.stage(step, name)

    def step_done(self, step: int, metrics: Mapping[str, float], record: StepRecord) -> None:
        """Log a step."""
        self.last_metrics = metrics
        self._log(step, metrics)
        self._console.step(step, metrics, row="console" in self._config.trainer.logger)
        if self._config.trainer.rollout_data_dir:
            folder = Path(self._config.trainer.rollout_data_dir).expanduser()
            self._dump(folder, step, record.prompts, record, None)

    def validated(self, step: int, result: ValidationResult, prompts: Sequence[Prompt]) -> None:
        """Log a validation pass, and keep generations where asked."""
        self._log(step, result.metrics)
        moment = held_out(result)
        if moment is not None:
            self._console.note(f"held-out at step {step}: {moment.text()}")
        trainer = self._config.trainer
        if trainer.validation_data_dir:
            self._dump(Path(trainer.validation_data_dir).expanduser(), step, prompts, result, None)
        if trainer.log_val_generations > 0:
            self._dump(self._run_dir / "validation", step, prompts, result, trainer.log_val_generations)

    def checkpointed(self, step: int, path: Path) -> None:
        """Remember where the newest checkpoint is."""
        self.last_checkpoint = path
        log.info("checkpoint of step %d: %s", step, path)

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._fence.writing():  # what an earlier leader still has to tell is of a line that was given up
            for logger in self._loggers:
                logger.log(step, metrics)

    def _dump(
        self,
        folder: Path,
        step: int,
        prompts: Sequence[Prompt],
        made: StepRecord | ValidationResult,
        limit: int | None,
    ) -> None:
        if not self._dumps_work:
            return
        try:
            write_dump(folder, step, prompts, made.completions, made.outcomes, limit)
        except (OSError, ValueError, TypeError, RecursionError) as error:  # a disk, or free-form values of graders
            self._dumps_work = False
            log.warning("generations can't be written to %s and are now off: %s", folder, error)
