"""One training run from a resolved configuration to its report: what `argosy train` does."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from rich.console import Console

from argosy.config import Config, validate_row_count
from argosy.controller.console import RunConsole
from argosy.controller.context import RunContext
from argosy.controller.control import RunControl
from argosy.controller.data.prompts import PromptSource, load_prompts
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.launch import StopSignals
from argosy.controller.ledger import Ledger, LedgerCut, rewind
from argosy.controller.loggers import build_loggers
from argosy.controller.loop import Controller
from argosy.controller.observer import RunObserver
from argosy.controller.placement import Placement, open_placement
from argosy.controller.recovery import Checkpoint, CheckpointStore, find_resume
from argosy.controller.report import RunReport, compare, held_out, write_report
from argosy.controller.serving import serve_control
from argosy.membership.interface import Leadership
from argosy.telemetry.logs import PlainFormatter
from argosy.types.errors import ArgosyError, ConfigError, FencedError, storage_error
from argosy.types.records import Prompt

log = logging.getLogger(__name__)

LOG_BYTES = 32 * 2**20


class Run:
    """Everything that is known about a run before its first process starts."""

    def __init__(self, config: Config, console: Console) -> None:
        self.run_dir = config.run_folder.resolve()
        _make_folder(self.run_dir)
        self.console = console
        self.store = CheckpointStore(self.run_dir, config.trainer.max_actor_ckpt_to_keep)
        trainer = config.trainer
        self.checkpoint = find_resume(self.store, trainer.resume_mode, trainer.resume_from_path, self.run_dir)
        self.saved: dict[str, Any] = self.checkpoint.state() if self.checkpoint else {}
        run_id = config.argosy.run_id or self.saved.get("run_id") or _new_run_id()
        self.config = replace(config, argosy=replace(config.argosy, run_id=run_id))
        self.source = load_prompts(self.config, "train")
        self.sampler = _sampler(self.config, self.source)
        self.held_out: list[Prompt] = _held_out(self.config)
        epochs = trainer.total_epochs * self.sampler.steps_per_epoch
        validate_row_count(self.config, len(self.source))
        self.total_steps = trainer.total_training_steps or epochs
        if self.checkpoint:
            self._restore_data_order(self.checkpoint)
        self.config = _with_schedule_length(self.config, self.total_steps)
        self.config.save(self.run_dir / "config.yaml")

    def _restore_data_order(self, checkpoint: Checkpoint) -> None:
        log.info("resuming from %s", checkpoint.path)
        self.sampler.restore(self.saved["sampler"])
        if checkpoint.step >= self.total_steps:
            raise ConfigError(
                f"nothing to do: {checkpoint.path} is at step {checkpoint.step} of {self.total_steps}; raise "
                "trainer.total_training_steps (or total_epochs), or start anew with another trainer.experiment_name"
            )

    async def execute(self, control: RunControl) -> RunReport:
        """Start the services, train, export, report. Raises the first cause of any failure."""
        started = time.monotonic()
        with RunConsole(self.total_steps, self.console) as screen:
            loggers = build_loggers(self.config, self.run_dir)
            observer = RunObserver(self.config, self.run_dir, screen, loggers)
            screen.stage(self.saved.get("step", 0), "starting services")
            try:
                async with open_placement(self.config, self.run_dir) as placement:
                    controller, exported = await placement.race(self._train(placement, observer, control, screen))
            finally:
                for logger in loggers:
                    logger.close()
        change, half_width = compare(controller.first_validation, controller.last_validation)
        first_step = int(self.saved.get("step", 0))
        version = controller.state.version
        report = RunReport(
            run_id=str(self.config.argosy.run_id),
            run_dir=str(self.run_dir),
            step=controller.state.step,
            version="" if version is None else version.short,
            duration_s=time.monotonic() - started,
            checkpoint=None if observer.last_checkpoint is None else str(observer.last_checkpoint),
            exported_model=exported,
            before=held_out(first_step, controller.first_validation),
            after=held_out(controller.state.step, controller.last_validation) if change is not None else None,
            change=change,
            change_half_width=half_width,
        )
        write_report(report, self.console)
        return report

    async def _train(
        self, placement: Placement, observer: RunObserver, control: RunControl, screen: RunConsole
    ) -> tuple[Controller, str | None]:
        run_id = str(self.config.argosy.run_id)
        leadership = await placement.membership.elect(
            run_id, candidate="controller-0", min_term=int(self.saved.get("term", 0)) + 1
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(leadership.resign)
            ledger = Ledger(self.run_dir / "ledger", leadership.term)
            stack.callback(ledger.close)
            ctx = RunContext(self.config, run_id, leadership.term, placement.services, ledger)
            control.view.term, control.view.state = leadership.term, "running"
            await stack.enter_async_context(serve_control(control, placement.membership, self.run_dir))
            await _check_data_sources(ctx, self.source, self.held_out)
            controller = Controller(ctx, self.sampler, self.held_out, self.store, self.total_steps, observer, control)
            if self.checkpoint:
                await self._restore(ctx, controller, self.checkpoint)
                screen.start_at(self.checkpoint.step)
                screen.note(f"resumed from {self.checkpoint.path}")
            else:
                rewind(self.run_dir / "ledger", LedgerCut(0, ""), f"before-{run_id}")
                screen.note(f"starting new run {run_id} in {self.run_dir}")
            await _while_leading(leadership, controller.run())
            exported = await self._export(ctx, controller)
            control.ended("finished")
        return controller, exported

    async def _restore(self, ctx: RunContext, controller: Controller, checkpoint: Checkpoint) -> None:
        cut = LedgerCut(int(self.saved["ledger"]["step"]), str(self.saved["ledger"]["sha256"]))
        ctx.lineage = str(self.saved["lineage"])
        if self.checkpoint and rewind(self.run_dir / "ledger", cut, ctx.lineage):
            # Steps after the checkpoint were finished once; the same numbers will now name other weights.
            ctx.lineage = f"l{int(ctx.lineage.removeprefix('l')) + 1}"
        ctx.counters.update(self.saved.get("counters", {}))
        controller.kl.coef = float(self.saved["kl_coef"])
        controller.state.step = checkpoint.step
        controller.state.cut = cut
        controller.state.sampler_state = self.saved["sampler"]
        status = await ctx.services.policy.load_checkpoint(
            str(checkpoint.actor), ctx.mutation("load", checkpoint.step, ctx.term)
        )
        if status.step != checkpoint.step:
            raise ConfigError(f"{checkpoint.path} holds a trainer at step {status.step}, not {checkpoint.step}")

    async def _export(self, ctx: RunContext, controller: Controller) -> str | None:
        if not self.config.argosy.export_hf or self.config.trainer.val_only:
            return None
        path = self.run_dir / "hf"
        step = controller.state.step
        await ctx.services.policy.export_hf(str(path), ctx.mutation("export", step, expected_step=step))
        return str(path)


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


async def _check_data_sources(ctx: RunContext, source: PromptSource, held_out: Sequence[Prompt]) -> None:
    """A data source that no scorer knows is an error before the first token, not a reward of 0."""
    known = (await ctx.services.reward.capabilities()).data_sources
    used = {prompt.data_source for prompt in held_out} | {prompt.data_source for prompt in source.in_order()}
    unknown = sorted(name for name in used if not _known(name, known))
    if unknown:
        raise ConfigError(
            f"no scorer knows the data source{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))}; known: "
            f"{', '.join(known)}. Set custom_reward_function.path=… to a file with compute_score(…), or correct the "
            "data_source column"
        )


def _known(name: str, patterns: Sequence[str]) -> bool:
    return any(
        pattern == name or (pattern.endswith("*") and name.startswith(pattern.removesuffix("*")))
        for pattern in patterns
    )


def _sampler(config: Config, source: PromptSource) -> PromptSampler:
    seed = config.argosy.seed if config.data.seed is None else config.data.seed
    return PromptSampler(source, config.data.train_batch_size, shuffle=config.data.shuffle, seed=seed)


def _held_out(config: Config) -> list[Prompt]:
    trainer = config.trainer
    wanted = trainer.val_before_train or trainer.val_only or trainer.test_freq > 0
    return list(load_prompts(config, "val").in_order()) if config.data.val_files and wanted else []


def _with_schedule_length(config: Config, total_steps: int) -> Config:
    """The learning-rate schedule runs over the whole training unless it was given its own length."""
    actor = config.actor_rollout_ref.actor
    if actor.optim.total_training_steps > 0:
        return config
    return config.with_values({"actor_rollout_ref.actor.optim.total_training_steps": total_steps})


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise storage_error(error, path) from error


def _new_run_id() -> str:
    return f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start_logging(config: Config, console: Console) -> None:
    """The controller's own log: all of it to logs/controller-0.log in the run folder, warnings to the screen too."""
    from rich.logging import RichHandler

    folder = config.run_folder / "logs"
    _make_folder(folder)
    handler = RotatingFileHandler(folder / "controller-0.log", maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(PlainFormatter("controller-0"))
    screen = RichHandler(level=logging.WARNING, console=console, show_path=False, show_time=False)
    root = logging.getLogger()
    for older in list(root.handlers):
        root.removeHandler(older)
    root.addHandler(handler)
    root.addHandler(screen)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)


class InterruptedRunError(ArgosyError):
    """A signal ended the run; everything that was started has been ended too."""

    def __init__(self, run: Run, exit_code: int, signal_name: str) -> None:
        kept = run.store.complete()
        where = (
            f"the last checkpoint is {kept[-1].path}; the same command resumes from it" if kept else "no checkpoint yet"
        )
        super().__init__(f"stopped by {signal_name}: {where}")
        self.exit_code = exit_code


async def _supervised(run: Run) -> RunReport:
    with StopSignals() as signals:
        signals.cancel(asyncio.current_task())
        try:
            return await run.execute(RunControl(str(run.config.argosy.run_id), run.total_steps))
        except asyncio.CancelledError:
            if signals.number is None:
                raise
            raise InterruptedRunError(run, signals.exit_code, signals.number.name) from None


def run_training(config: Config, console: Console) -> RunReport:
    """Run to the end and return the report. Raises the first cause of any failure, InterruptedRunError on a signal."""
    return asyncio.run(_supervised(Run(config, console)))
