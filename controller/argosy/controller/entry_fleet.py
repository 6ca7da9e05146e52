"""The blocking front of one controller of a fleet: it stands by, leads, and lets others know how it went."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from rich.console import Console

from argosy.config import Config
from argosy.controller.candidacy import Candidacy, Ended, Seat, announce_end
from argosy.controller.control import RunControl
from argosy.controller.entry import InterruptedRunError, start_logging, supervised, way_on
from argosy.controller.launch import StopSignals
from argosy.controller.launch.lock import RunFolderLock
from argosy.controller.prepare import PreparedRun, RunData
from argosy.controller.report import RunReport
from argosy.controller.run import Run
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.telemetry.traces import setup_from_settings
from argosy.types.errors import ArgosyError, FencedError, InvalidInputError, StateError

log = logging.getLogger(__name__)


class StandbyInterruptedError(ArgosyError):
    """A signal ended a controller that stood by; the run goes on."""

    def __init__(self, exit_code: int, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name} while standing by: the run goes on without this controller")
        self.exit_code = exit_code


def run_in_fleet(config: Config, console: Console) -> RunReport | Ended:
    """Lead the run to its end as soon as nobody else does, or tell that it has ended under another controller.

    Raises the first cause of any failure; FencedError when another controller has taken over; InterruptedRunError or
    StandbyInterruptedError on a signal.
    """
    start_logging(None, console)
    data = RunData.load(config)
    return asyncio.run(_stand_and_lead(config, data, console))


async def _stand_and_lead(config: Config, data: RunData, console: Console) -> RunReport | Ended:
    settings = config.argosy.membership
    membership = EtcdMembership(EtcdOptions(settings.endpoints, settings.prefix, settings.lease_ttl_s))
    try:
        with StopSignals() as signals:
            candidacy = Candidacy(config, membership, lambda text: console.print(text, soft_wrap=True))
            won = await _unless_stopped(candidacy.stand(), signals)
            if isinstance(won, Ended):
                console.print(won.text, soft_wrap=True)
                return won
            try:
                return await _lead(config, data, won, console, signals)
            finally:
                await won.leadership.resign()
    finally:
        await membership.close()


async def _unless_stopped(standing: Coroutine[Any, Any, Seat | Ended], signals: StopSignals) -> Seat | Ended:
    waiting, asking = asyncio.ensure_future(standing), asyncio.ensure_future(signals.requested.wait())
    try:
        await asyncio.wait({waiting, asking}, return_when=asyncio.FIRST_COMPLETED)
        if signals.number is not None and not waiting.done():
            raise StandbyInterruptedError(signals.exit_code, signals.number.name)
        return waiting.result()
    finally:
        for task in (waiting, asking):
            task.cancel()
        await asyncio.gather(waiting, asking, return_exceptions=True)


async def _lead(config: Config, data: RunData, seat: Seat, console: Console, signals: StopSignals) -> RunReport:
    """From the newest checkpoint to the end of the run."""
    run_dir = config.run_folder.resolve()
    lock = RunFolderLock(run_dir)
    lock.share()
    prepared: PreparedRun | None = None
    try:
        start_logging(run_dir / "logs", console, seat.member_id)
        if seat.stood_by:
            config = config.with_values({"trainer.resume_mode": "auto", "trainer.resume_from_path": None})
        prepared = await asyncio.to_thread(PreparedRun, config, data, fence=seat.fence, services_stay=True)
        telemetry = config.argosy.telemetry
        tracing = setup_from_settings(
            seat.member_id,
            run_id=prepared.run_id,
            run_dir=run_dir,
            enabled=telemetry.enabled,
            otlp_endpoint=telemetry.otlp_endpoint,
        )
        try:
            control = RunControl(prepared.run_id, prepared.total_steps)
            report = await supervised(Run(prepared, console, tracing, seat), control, signals)
        finally:
            tracing.shutdown()
        state = "finished" if report.step >= prepared.total_steps or not control.stop_requested else "stopped"
        await announce_end(seat, prepared.run_id, state, report.step)
        return report
    except (InvalidInputError, InterruptedRunError):
        raise
    except Exception as error:
        await asyncio.to_thread(_raise_if_fenced, seat, error)
        if isinstance(error, ArgosyError) and not isinstance(error, StateError) and prepared is not None:
            hint = way_on(prepared)
            error.args = (f"{error}\n{hint[0].upper()}{hint[1:]}.",)
        raise
    finally:
        lock.release()


def _raise_if_fenced(seat: Seat, error: Exception) -> None:
    """What went wrong because another controller has taken over is told as that."""
    if isinstance(error, FencedError):
        raise error
    try:
        with seat.fence.writing():
            lost = seat.leadership.lost
    except FencedError as fenced:
        raise fenced from error
    if lost:
        raise FencedError(
            f"another controller leads this run now; term {seat.leadership.term} is over: {error}"
        ) from error
