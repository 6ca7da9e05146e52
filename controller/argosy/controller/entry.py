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
from argosy.types.errors import ArgosyError, InvalidInputError, StateError

log = logging.getLogger(__name__)

LOG_BYTES = 32 * 2**20


class InterruptedRunError(ArgosyError):
    """A signal ended the run; everything that was started has been ended too."""

    def __init__(self, prepared: PreparedRun, exit_code: int, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name}: {way_on(prepared)}")
        self.exit_code = exit_code


def way_on(prepared: PreparedRun) -> str:
    """What the same command will do after this run has ended early: which checkpoint it goes on from."""
    trainer = prepared.config.trainer
    if trainer.resume_mode == "resume_path":
        return f"the same command starts from {trainer.resume_from_path} again; newest here: {_newest(prepared)}"
    newest = prepared.store.newest()
    if newest is None:
        return "there is no checkpoint yet; the same command starts again"
    if trainer.resume_mode == "disable":
        return f"the last checkpoint is {newest.path}; trainer.resume_mode=auto resumes from it"
    return f"the last checkpoint is {newest.path}; the same command resumes from it"


def _newest(prepared: PreparedRun) -> str:
    newest = prepared.store.newest()
    return "none" if newest is None else str(newest.path)


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
        return asyncio.run(_signalled(Run(prepared, console, tracing)))
    except (InvalidInputError, InterruptedRunError, StateError):
        raise  # the input, or another run in the folder: not the end of one that was under way
    except ArgosyError as error:
        hint = way_on(prepared)
        error.args = (f"{error}\n{hint[0].upper()}{hint[1:]}.",)
        raise
    except Exception as error:
        error.add_note(way_on(prepared))
        raise
    finally:
        tracing.shutdown()


async def _signalled(run: Run) -> RunReport:
    with StopSignals() as signals:
        return await supervised(run, RunControl(run.prepared.run_id, run.prepared.total_steps), signals)


async def supervised(run: Run, control: RunControl, signals: StopSignals) -> RunReport:
    """The run under signals: the first saves what is finished and ends it, the second ends it at once."""
    prepared = run.prepared
    working = asyncio.ensure_future(run.execute(control))
    asking = asyncio.ensure_future(signals.requested.wait())
    try:
        await asyncio.wait({working, asking}, return_when=asyncio.FIRST_COMPLETED)
        if signals.number is not None and not working.done():
            await _end_soon(working, control, signals.number.name, prepared.config.argosy.stop_save_s)
        report = await working
    except asyncio.CancelledError:
        if signals.number is None:
            raise
        raise InterruptedRunError(prepared, signals.exit_code, signals.number.name) from None
    finally:
        asking.cancel()
        working.cancel()
        await asyncio.gather(asking, working, return_exceptions=True)
    if control.interrupted and signals.number is not None:
        raise InterruptedRunError(prepared, signals.exit_code, signals.number.name)
    return report


async def _end_soon(working: asyncio.Future[RunReport], control: RunControl, signal_name: str, limit_s: float) -> None:
    """Let the run save its finished steps, and cancel it if there are none or it takes too long."""
    if control.interrupt(f"stopped by {signal_name}") and limit_s > 0:
        log.warning(
            "%s: saving %d finished steps before the end, for at most %g s; once more ends at once",
            signal_name, control.unsaved_steps, limit_s,
        )  # fmt: skip
        await asyncio.wait({working}, timeout=limit_s)
        if not working.done():
            log.warning("not saved within argosy.stop_save_s=%g: ending without", limit_s)
    working.cancel()


def start_logging(folder: Path | None, console: Console, member_id: str = MEMBER_ID) -> None:
    """The controller's own log: all of it to its file in logs/ of the run folder, warnings to the screen too.

    `folder`: None: to the screen alone, as long as the folder is another controller's.
    """
    handlers: list[logging.Handler] = []
    if folder is not None:
        make_folder(folder)
        file = RotatingFileHandler(folder / f"{member_id}.log", maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
        file.setFormatter(PlainFormatter(member_id))
        handlers.append(file)
    screen = RichHandler(level=logging.WARNING, console=console, show_path=False, show_time=False)
    root = logging.getLogger()
    for older in list(root.handlers):
        root.removeHandler(older)
    for handler in (*handlers, screen):
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
