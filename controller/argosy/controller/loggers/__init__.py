"""Where metrics go. `trainer.logger` names them; the local file is always written, whatever else fails (case H4)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from argosy.config import Config
from argosy.types.errors import ConfigError

log = logging.getLogger(__name__)


class MetricLogger(Protocol):
    """Takes the numbers of a step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of one step. May raise; `Guarded` sees to it that a run survives."""

    def begin(self, step: int, abandoned: str, metrics: Mapping[str, float]) -> None:
        """A start of the run, before anything is logged: it goes on after `step` (0: from the beginning).

        Args:
            step: What was logged of later steps, by an earlier start, is superseded.
            abandoned: Name of the lineage that those were of.
            metrics: Of `step`, from its checkpoint: a crash may have come before they were logged. May be empty.
        """

    def close(self) -> None:
        """Flush and release."""


LOGGERS: dict[str, str] = {
    "file": "argosy.controller.loggers.jsonl:JsonlLogger",
    "tensorboard": "argosy.controller.loggers.tensorboard:TensorBoardLogger",
    "wandb": "argosy.controller.loggers.wandb:WandbLogger",
}
"""Name in `trainer.logger` → "module:Class"; "console" is the live table, not a metric logger."""


class Guarded:
    """A logger whose failures cost one warning and itself, never the run."""

    def __init__(self, name: str, logger: MetricLogger) -> None:
        self._name = name
        self._logger: MetricLogger | None = logger

    def begin(self, step: int, abandoned: str, metrics: Mapping[str, float]) -> None:
        """Pass on, or give the logger up with one warning."""
        self._try(step, lambda logger: logger.begin(step, abandoned, metrics))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on, or give the logger up with one warning."""
        self._try(step, lambda logger: logger.log(step, metrics))

    def _try(self, step: int, call: Callable[[MetricLogger], None]) -> None:
        if self._logger is None:
            return
        try:
            call(self._logger)
        except Exception as error:  # noqa: BLE001 - a tracker of any make must not end a training run
            log.warning("logger %r failed at step %d and is now off: %s", self._name, step, error)
            self._logger = None

    def close(self) -> None:
        """Flush, or warn."""
        if self._logger is None:
            return
        try:
            self._logger.close()
        except Exception as error:  # noqa: BLE001 - see above
            log.warning("logger %r could not be closed: %s", self._name, error)


def build_loggers(config: Config, run_dir: Path) -> list[MetricLogger]:
    """The configured loggers, "file" first. One that can't start costs a warning; an unknown name is a ConfigError."""
    names = [name for name in config.trainer.logger if name != "console"]
    unknown = sorted(set(names) - set(LOGGERS))
    if unknown:
        raise ConfigError(f"trainer.logger: unknown {unknown}; known: console, {', '.join(LOGGERS)}")
    built: list[MetricLogger] = []
    for name in dict.fromkeys(["file", *names]):
        module, _, attribute = LOGGERS[name].partition(":")
        try:
            factory = getattr(importlib.import_module(module), attribute)
            built.append(Guarded(name, factory(config, run_dir)))
        except ModuleNotFoundError as error:
            log.warning("logger %r is off: package %r is not installed (pip install %s)", name, error.name, error.name)
        except Exception as error:  # noqa: BLE001 - a tracker of any make must not end a training run
            log.warning("logger %r is off: %s", name, error)
    return built
