"""The blocking front of a run: logs, traces, signals, and the event loop."""

from __future__ import annotations

import asyncio
import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from argosy.config import Config
from argosy.controller.control import RunControl
from argosy.controller.launch import StopSignals
from argosy.controller.prepare import PreparedRun, make_folder
from argosy.controller.report import RunReport
from argosy.controller.run import Run
from argosy.controller.serving import MEMBER_ID
from argosy.telemetry.logs import PlainFormatter
from argosy.telemetry.traces import setup_from_settings
from argosy.types.errors import ArgosyError

LOG_BYTES = 32 * 2**20


class InterruptedRunError(ArgosyError):
    """A signal ended the run; everything that was started has been ended too."""

    def __init__(self, prepared: PreparedRun, exit_code: int, signal_name: str) -> None:
        kept = prepared.store.complete()
        if kept:
            where = f"the last checkpoint is {kept[-1].path}; the same command resumes from it"
        else:
            where = "there is no checkpoint yet; the same command starts again"
        super().__init__(f"stopped by {signal_name}: {where}")
        self.exit_code = exit_code


def run_training(config: Config, console: Console) -> RunReport:
    """Run to the end and return the report. Raises the first cause of any failure, InterruptedRunError on a signal."""
    start_logging(config.run_folder / "logs", console)
    prepared = PreparedRun(config)
    telemetry = config.argosy.telemetry
    tracing = setup_from_settings(
        MEMBER_ID,
        run_id=prepared.run_id,
        run_dir=prepared.run_dir,
        enabled=telemetry.enabled,
        otlp_endpoint=telemetry.otlp_endpoint,
    )
    try:
        return asyncio.run(_supervised(Run(prepared, console, tracing)))
    finally:
        tracing.shutdown()


async def _supervised(run: Run) -> RunReport:
    prepared = run.prepared
    with StopSignals() as signals:
        signals.cancel(asyncio.current_task())
        try:
            return await run.execute(RunControl(prepared.run_id, prepared.total_steps))
        except asyncio.CancelledError:
            if signals.number is None:
                raise
            raise InterruptedRunError(prepared, signals.exit_code, signals.number.name) from None


def start_logging(folder: Path, console: Console) -> None:
    """The controller's own log: all of it to logs/controller-0.log in the run folder, warnings to the screen too."""
    make_folder(folder)
    file = RotatingFileHandler(folder / f"{MEMBER_ID}.log", maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    file.setFormatter(PlainFormatter(MEMBER_ID))
    screen = RichHandler(level=logging.WARNING, console=console, show_path=False, show_time=False)
    root = logging.getLogger()
    for older in list(root.handlers):
        root.removeHandler(older)
    root.addHandler(file)
    root.addHandler(screen)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
