"""One training run from its preparation to its report: what `argosy train` does once the input is known to be good."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Console

from argosy.controller.console import RunConsole
from argosy.controller.context import RunContext
from argosy.controller.control import RunControl
from argosy.controller.ledger import OPEN_STATES, Entry, Ledger, LedgerCut, rewind
from argosy.controller.ledger.lives import begin_life, next_lineage, read_lives
from argosy.controller.loggers import build_loggers
from argosy.controller.loggers.jsonl import was_validated
from argosy.controller.loop import Controller
from argosy.controller.observer import RunObserver
from argosy.controller.placement import Placement, open_placement
from argosy.controller.prepare import PreparedRun
from argosy.controller.recording.recorder import recorder_of
from argosy.controller.recording.replay import ReplayProducer
from argosy.controller.recovery import PENDING_VALIDATION, Checkpoint
from argosy.controller.report import RunReport, compare, held_out, write_report
from argosy.controller.rewards.trial import try_prompts
from argosy.controller.serving import serve_control
from argosy.membership.interface import Leadership
from argosy.roles.policy import Training
from argosy.telemetry.traces import Tracing
from argosy.types.errors import ConfigError, FencedError

log = logging.getLogger(__name__)


class Run:
    """Starts the services, trains, exports and reports."""

    def __init__(self, prepared: PreparedRun, console: Console, tracing: Tracing) -> None:
        self.prepared = prepared
        self._config = prepared.config
        self._run_dir = prepared.run_dir
        self._console = console
        self._tracing = tracing

    async def execute(self, control: RunControl) -> RunReport:
        """Run to the end. Raises the first cause of any failure."""
        started = time.monotonic()
        with RunConsole(self.prepared.total_steps, self._console) as screen:
            loggers = build_loggers(self._config, self._run_dir)
            observer = RunObserver(self._config, self._run_dir, screen, loggers)
            screen.stage(self.prepared.first_step, "starting services")
            try:
                async with open_placement(self._config, self._run_dir) as placement:
                    # Only now is the folder ours alone: a run that is under way there must keep its configuration,
                    # and where it came to is known only when it has ended.
                    self.prepared.check_unchanged()
                    self._config.save(self._run_dir / "config.yaml")
                    controller, exported = await placement.race(self._train(placement, observer, control, screen))
            except BaseException as error:
                control.ended("failed", str(error))
                raise
            finally:
                for logger in loggers:
                    logger.close()
        report = self._report(controller, observer, exported, time.monotonic() - started)
        write_report(report, self._console)
        return report

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

    async def _train(
        self, placement: Placement, observer: RunObserver, control: RunControl, screen: RunConsole
    ) -> tuple[Controller, str | None]:
        prepared = self.prepared
        leadership = await placement.membership.elect(
            prepared.run_id, candidate="controller-0", min_term=self._last_term() + 1
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(leadership.resign)
            ledger = Ledger(self._run_dir / "ledger", leadership.term)
            stack.callback(ledger.close)
            ctx = RunContext(
                self._config, prepared.run_id, leadership.term, placement.services, ledger, placement.membership
            )
            control.view.term, control.view.state = leadership.term, "running"
            await stack.enter_async_context(
                serve_control(control, placement.membership, self._run_dir, self._config, self._tracing)
            )
            await _check_data_sources(ctx, prepared)
            first_step = prepared.first_step if prepared.continues else 0
            recorder = recorder_of(self._config, self._run_dir, prepared.run_id, first_step)
            controller = Controller(
                ctx, prepared.sampler, prepared.held_out, prepared.store, prepared.total_steps, observer, control,
                producer=None if prepared.replayed is None else ReplayProducer(ctx, prepared.replayed),
                recorder=await stack.enter_async_context(recorder),
            )  # fmt: skip
            abandoned = self._begin_life(ctx)
            if prepared.checkpoint:
                await self._restore(ctx, controller, prepared.checkpoint, abandoned)
                screen.start_at(prepared.checkpoint.step)
                screen.note(f"resumed from {prepared.checkpoint.path}")
            else:
                rewind(self._run_dir / "ledger", LedgerCut(0, ""), abandoned)
                screen.note(f"starting new run {prepared.run_id} in {self._run_dir}")
            saved_metrics = prepared.saved.get("metrics", {}) if prepared.continues else {}
            observer.begin(prepared.first_step if prepared.continues else 0, abandoned, saved_metrics)
            await _while_leading(leadership, controller.run())
            exported = await self._export(ctx, controller)
            control.ended("finished")
        return controller, exported

    def _last_term(self) -> int:
        """The highest of any start of this run, so that no two have the same."""
        terms = [life.term for life in read_lives(self._run_dir / "ledger") if life.run_id == self.prepared.run_id]
        return max(int(self.prepared.saved.get("term", 0)), *terms, 0)

    def _begin_life(self, ctx: RunContext) -> str:
        """Give this start its lineage; returns the name for what it gives up of an earlier start's work."""
        prepared, folder = self.prepared, self._run_dir / "ledger"
        lives = read_lives(folder)
        saved = str(prepared.saved["lineage"]) if prepared.checkpoint else None
        ctx.lineage = next_lineage(lives, prepared.run_id, saved)
        begin_life(folder, prepared.run_id, ctx.lineage, ctx.term, prepared.first_step)
        if not prepared.continues:
            return f"before-{prepared.run_id}"
        return lives[-1].lineage if lives else str(saved)

    async def _restore(self, ctx: RunContext, controller: Controller, checkpoint: Checkpoint, abandoned: str) -> None:
        saved, folder = self.prepared.saved, self._run_dir / "ledger"
        cut = LedgerCut(0, "")  # another run's books stay where they are
        if self.prepared.continues:
            cut = LedgerCut(int(saved["ledger"]["step"]), str(saved["ledger"]["sha256"]))
        rewind(folder, cut, abandoned)
        in_flight = checkpoint.in_flight()
        entries = [Entry.from_row(row) for row in in_flight["entries"]]
        if not self.prepared.continues:  # what the other run has dropped is in its own books
            entries = [entry for entry in entries if entry.state in OPEN_STATES]
        ctx.ledger.resume(cut, entries)
        ctx.counters.update(saved.get("counters", {}))
        controller.kl.coef = float(saved["kl_coef"])
        controller.state.step = checkpoint.step
        controller.state.cut = cut
        controller.state.counters = dict(ctx.counters)
        controller.state.sampler_state = saved["sampler"]
        unfinished = self.prepared.continues and saved.get(PENDING_VALIDATION) == checkpoint.step
        if unfinished and not was_validated(self._run_dir, checkpoint.step):
            controller.held_out.pending = checkpoint.step
        controller.restore_rewards(saved.get("rewards", {}))
        if in_flight["stream"]:
            controller.restore_stream(in_flight["stream"])
        await _load(ctx, checkpoint, "actor", ctx.services.policy)
        if ctx.services.critic is not None:
            await _load(ctx, checkpoint, "critic", ctx.services.critic)

    async def _export(self, ctx: RunContext, controller: Controller) -> str | None:
        if not self._config.argosy.export_hf or self._config.trainer.val_only or controller.interrupted:
            return None
        path = self._run_dir / "hf"
        step = controller.state.step
        policy_step = ctx.trainer_step("actor", step)
        await ctx.services.policy.export_hf(str(path), ctx.mutation("export", step, expected_step=policy_step))
        if ctx.services.critic is not None:
            critic_path = str(self._run_dir / "hf_critic")
            await ctx.services.critic.export_hf(critic_path, ctx.mutation("export-critic", step, expected_step=step))
        return str(path)


async def _load(ctx: RunContext, checkpoint: Checkpoint, name: str, trainer: Training) -> None:
    """Restore one trainer. Raises ConfigError if the checkpoint has no such part, or one of another step."""
    folder = checkpoint.path / name
    if not folder.is_dir():
        raise ConfigError(
            f"{checkpoint.path} holds no {name}: it is of a run without one; choose the same algorithm.adv_estimator, "
            "or start a new run with another trainer.experiment_name"
        )
    status = await trainer.load_checkpoint(str(folder), ctx.mutation("load", name, checkpoint.step, ctx.term))
    expected = ctx.trainer_step(name, checkpoint.step)
    if status.step != expected:
        raise ConfigError(
            f"{folder} is at training step {status.step}, but step {checkpoint.step} of the run with "
            f"trainer.critic_warmup={ctx.config.trainer.critic_warmup} means {expected}: was it another warm-up then?"
        )


async def _while_leading(leadership: Leadership, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, unless somebody else comes to lead the run: then stop at once, before anything is done twice."""
    working, losing = asyncio.ensure_future(work), asyncio.ensure_future(leadership.wait_lost())
    try:
        await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise FencedError(f"another controller leads this run now; term {leadership.term} is over")
        working.result()
    finally:
        for task in (working, losing):
            task.cancel()
        await asyncio.gather(working, losing, return_exceptions=True)


async def _check_data_sources(ctx: RunContext, prepared: PreparedRun) -> None:
    """A data source that no scorer knows is an error before the first token, not a reward of 0. Sessions of agents
    bring their own rewards."""
    if ctx.services.router is not None:
        sessions = ctx.config.argosy.openai.source == "sessions"
        judged = {prompt.data_source for prompt in prepared.held_out} if sessions else prepared.data_sources
        ctx.services.router.check_sources(judged)
        sampled = [] if sessions else prepared.sampler.of_each_kind()
        tolerated = ctx.config.argosy.reward.max_error_rate
        await try_prompts(ctx.services.router, [*sampled, *prepared.held_out], max_error_rate=tolerated)
