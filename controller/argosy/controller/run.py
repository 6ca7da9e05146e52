"""One training run from its preparation to its report: what `argosy train` does once the input is known to be good."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from rich.console import Console

from argosy.controller.candidacy import Seat
from argosy.controller.console import RunConsole
from argosy.controller.context import RunContext
from argosy.controller.control import RunControl
from argosy.controller.launch import SetbackError
from argosy.controller.ledger import Ledger
from argosy.controller.ledger.lives import read_lives
from argosy.controller.life import Life, Watchers
from argosy.controller.loggers import build_loggers
from argosy.controller.loop import Controller
from argosy.controller.observer import RunObserver
from argosy.controller.placement import Placement, open_placement
from argosy.controller.placement_fleet import open_fleet
from argosy.controller.prepare import PreparedRun
from argosy.controller.report import RunReport, compare, held_out, write_report
from argosy.controller.serving import MEMBER_ID, serve_control
from argosy.controller.setbacks import Setbacks
from argosy.membership.interface import Leadership
from argosy.telemetry.traces import Tracing


class Run:
    """Starts the services, trains, exports and reports."""

    def __init__(self, prepared: PreparedRun, console: Console, tracing: Tracing, seat: Seat | None = None) -> None:
        """`seat`: Of a controller that leads a fleet already; None: the run starts its services and elects itself."""
        self.prepared = prepared
        self._seat = seat
        self._config = prepared.config
        self._run_dir = prepared.run_dir
        self._console = console
        self._tracing = tracing

    async def execute(self, control: RunControl) -> RunReport:
        """Run to the end. Raises the first cause of any failure."""
        started = time.monotonic()
        with RunConsole(self.prepared.total_steps, self._console) as screen:
            loggers = build_loggers(self._config, self._run_dir)
            observer = RunObserver(self._config, self._run_dir, screen, loggers, self.prepared.store.fence)
            screen.stage(self.prepared.first_step, "starting services")
            try:
                async with self._open_placement() as placement:
                    # Only now is the folder ours alone: a run that is under way there must keep its configuration,
                    # and where it came to is known only when it has ended.
                    self.prepared.check_unchanged()
                    self._config.save(self._run_dir / "config.yaml")
                    watchers = Watchers(observer, control, screen)
                    controller, exported = await placement.race(self._lead(placement, watchers))
            except BaseException as error:
                control.ended("failed", str(error))
                raise
            finally:
                for logger in loggers:
                    logger.close()
        report = self._report(controller, observer, exported, time.monotonic() - started)
        write_report(report, self._console)
        return report

    def _open_placement(self) -> AbstractAsyncContextManager[Placement]:
        if self._seat is None:
            return open_placement(self._config, self._run_dir)
        return open_fleet(self._config, self._seat)

    def _report(
        self, controller: Controller, observer: RunObserver, exported: str | None, duration_s: float
    ) -> RunReport:
        change, half_width = compare(controller.held_out.first, controller.held_out.last)
        version = controller.state.version
        return RunReport(
            run_id=self.prepared.run_id,
            run_dir=str(self._run_dir),
            step=controller.state.step,
            version="" if version is None else version.short,
            duration_s=duration_s,
            checkpoint=None if observer.last_checkpoint is None else str(observer.last_checkpoint),
            exported_model=exported,
            before=held_out(controller.held_out.first),
            after=held_out(controller.held_out.last) if change is not None else None,
            change=change,
            change_half_width=half_width,
        )

    async def _lead(self, placement: Placement, watchers: Watchers) -> tuple[Controller, str | None]:
        """Lead the run through its lives, until one of them comes to the end."""
        prepared, control = self.prepared, watchers.control
        async with AsyncExitStack() as stack:
            if self._seat is None:
                leadership: Leadership = await placement.membership.elect(
                    prepared.run_id, candidate=MEMBER_ID, min_term=self._last_term() + 1
                )
                stack.push_async_callback(leadership.resign)
            else:
                leadership = self._seat.leadership  # it ends later than the run does
            control.view.term, control.view.state = leadership.term, "running"
            control.scaler = placement.scale
            await stack.enter_async_context(
                serve_control(
                    control,
                    placement.membership,
                    self._run_dir,
                    self._config,
                    self._tracing,
                    MEMBER_ID if self._seat is None else self._seat.member_id,
                )
            )
            setbacks = Setbacks(prepared, self._config.argosy.restart.limit)
            setbacks.cause = "" if self._seat is None else self._seat.cause
            while True:
                work = self._live(placement, leadership, watchers, setbacks)
                try:
                    controller, exported = await placement.race(work, setbacks=True)
                except SetbackError as setback:
                    await setbacks.note(setback, watchers)
                    await placement.recover(fresh=prepared.checkpoint is None)
                    await setbacks.take_newer_weights(placement.membership, watchers)
                    continue
                control.ended("finished")
                return controller, exported

    async def _live(
        self, placement: Placement, leadership: Leadership, watchers: Watchers, setbacks: Setbacks
    ) -> tuple[Controller, str | None]:
        ledger = Ledger(self._run_dir / "ledger", leadership.term, self.prepared.store.fence)
        try:
            ctx = RunContext(
                self._config, self.prepared.run_id, leadership.term, placement.services, ledger, placement.membership,
                vitals=watchers.control.vitals,
            )  # fmt: skip
            life = Life(self.prepared, ctx, watchers, setbacks.cause)
            life.first_validation = setbacks.first_validation
            try:
                return await life.run(leadership)
            finally:
                setbacks.first_validation = life.first_validation
                setbacks.last_state = None if life.controller is None else life.controller.committed_state()
        finally:
            ledger.close()

    def _last_term(self) -> int:
        """The highest of any start of this run, so that no two have the same."""
        terms = [life.term for life in read_lives(self._run_dir / "ledger") if life.run_id == self.prepared.run_id]
        return max(int(self.prepared.saved.get("term", 0)), *terms, 0)
