"""Rollouts without a trainer: generate and score with the model's own weights, and record; `argosy rollout`."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from argosy.config import Config
from argosy.controller.agents.build import build_agents
from argosy.controller.context import RunContext
from argosy.controller.entry import start_logging
from argosy.controller.launch import StopSignals
from argosy.controller.ledger import Ledger, LedgerCut, rewind
from argosy.controller.placement import Placement, open_placement
from argosy.controller.prepare import data_order, make_folder, new_run_id
from argosy.controller.producing import NoMoreSteps, Produced
from argosy.controller.recording.fitting import tokenizer_digest
from argosy.controller.recording.recorder import open_recorder
from argosy.controller.recording.store import FOLDER, HEAD, Record, RecordedStep, StepEntry
from argosy.controller.recovery import CheckpointStore
from argosy.controller.rewards.trial import try_prompts
from argosy.controller.stages.newcomers import Newcomers
from argosy.controller.stages.relay import catch_up
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stream_build import build_producer
from argosy.types.errors import ArgosyError, ConfigError
from argosy.types.ids import PolicyVersion

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """What `argosy rollout` made, for people and as JSON."""

    run_id: str
    record: str
    steps: int
    """In the record, those of earlier starts included."""
    prompts: int
    samples: int
    tokens: int
    mean_score: float | None
    """Mean over the steps; None: no sample has a score."""
    model_version: str
    duration_s: float
    """Of this start."""
    tokens_per_s: float
    """Of this start, scoring and recording included."""


class InterruptedRolloutsError(ArgosyError):
    """A signal ended the command; the steps that are recorded stay."""

    def __init__(self, folder: Path, exit_code: int, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name}: the same command goes on after the last step in {folder}")
        self.exit_code = exit_code


def run_rollouts(config: Config, console: Console) -> RolloutReport:
    """Generate, score and record `trainer.total_training_steps` steps, or trainer.total_epochs data epochs.

    The same call again goes on after the last recorded step. Raises the first cause of any failure.
    """
    # Nothing is trained meanwhile, so nothing is stale, and whole batches are as fast.
    config = config.with_values({
        "argosy.rollout_only": True, "argosy.max_staleness": 0, "argosy.stream.extra_groups": 0,
        "argosy.stream.extra_samples": 0,
    })  # fmt: skip
    run_dir = config.run_folder.resolve()
    make_folder(run_dir)
    if kept := CheckpointStore(run_dir, None).complete():
        raise ConfigError(
            f"{run_dir} holds the checkpoints of a training run (up to step {kept[-1].step}): choose another "
            "trainer.experiment_name (or default_local_dir) for rollouts alone"
        )
    start_logging(run_dir / "logs", console)
    return asyncio.run(_interruptible(_Rollouts(config, run_dir, console)))


async def _interruptible(work: _Rollouts) -> RolloutReport:
    with StopSignals() as signals:
        signals.cancel(asyncio.current_task())
        try:
            return await work.run()
        except asyncio.CancelledError:
            if signals.number is None:
                raise
            raise InterruptedRolloutsError(work.folder, signals.exit_code, signals.number.name) from None


class _Rollouts:
    def __init__(self, config: Config, run_dir: Path, console: Console) -> None:
        wanted = config.argosy.record.path
        self.folder = Path(wanted).expanduser() if wanted else run_dir / FOLDER
        self._run_dir = run_dir
        self._sampler, self._data_sources = data_order(config)
        self._done, self._run_id = self._go_on(config)
        self._config = replace(config, argosy=replace(config.argosy, run_id=self._run_id))
        trainer = config.trainer
        self._total = trainer.total_training_steps or trainer.total_epochs * self._sampler.steps_per_epoch
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._console = console
        self._task = self._progress.add_task("starting services", total=self._total, completed=self._done)
        self._tokens = 0

    def _go_on(self, config: Config) -> tuple[int, str]:
        """Steps that are there already, and the run's id. Takes the data order to where they end."""
        if not (self.folder / HEAD).exists():
            return 0, config.argosy.run_id or new_run_id()
        record = Record(self.folder)
        head, own = record.head, config.actor_rollout_ref
        same = (
            head.rollouts_only
            and head.n == own.rollout.n
            and head.model == own.model.path
            and head.train_batch_size == config.data.train_batch_size
            and head.tokenizer == tokenizer_digest(config)
        )
        if not same:
            raise ConfigError(
                f"{self.folder} already holds a record, of run {head.run_id} (model {head.model}, {head.n} samples "
                f"per prompt, {head.train_batch_size} prompts per step): name another folder by argosy.record.path"
            )
        done = record.steps[-1] if record.steps else 0
        if done:
            self._sampler.restore(record.read(done).sampler_state)
        return done, head.run_id

    async def run(self) -> RolloutReport:
        started = time.monotonic()
        version = ""
        if self._done < self._total:
            with self._progress:
                async with open_placement(self._config, self._run_dir) as placement:
                    version = (await placement.race(self._record(placement))).short
        record = Record(self.folder)
        entries = [record.entries[step] for step in record.steps]
        scores = [entry.mean_score for entry in entries if entry.mean_score is not None]
        duration_s = time.monotonic() - started
        return RolloutReport(
            run_id=self._run_id,
            record=str(self.folder),
            steps=len(entries),
            prompts=sum(entry.prompt_count for entry in entries),
            samples=sum(entry.sample_count for entry in entries),
            tokens=sum(entry.token_count for entry in entries),
            mean_score=sum(scores) / len(scores) if scores else None,
            model_version=version,
            duration_s=duration_s,
            tokens_per_s=self._tokens / duration_s,
        )

    async def _record(self, placement: Placement) -> PolicyVersion:
        """All steps that are left; the weights that they are of."""
        leadership = await placement.membership.elect(self._run_id, candidate="controller-0", min_term=1)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(leadership.resign)
            rewind(self._run_dir / "ledger", LedgerCut(0, ""), f"before-step-{self._done + 1}")
            ledger = Ledger(self._run_dir / "ledger", leadership.term)
            stack.callback(ledger.close)
            ctx = RunContext(
                self._config, self._run_id, leadership.term, placement.services, ledger, placement.membership
            )
            if ctx.services.router is not None:
                ctx.services.router.check_sources(self._data_sources)
                tolerated = self._config.argosy.reward.max_error_rate
                await try_prompts(ctx.services.router, self._sampler.of_each_kind(), max_error_rate=tolerated)
            rollout = RolloutStage(ctx)
            rollout.version = await own_version(ctx)
            stack.push_async_callback(Newcomers(ctx, rollout, catch_up).close)
            agents = build_agents(ctx, rollout)
            if agents is not None:
                rollout.answerer = agents
                stack.callback(agents.close)
            producer = build_producer(ctx, self._sampler, rollout, self._stage, self._total)
            recorder = await stack.enter_async_context(
                open_recorder(
                    self._config, self._run_dir, self._run_id, self._done, rollouts_only=True, written=self._written
                )
            )
            for step in range(self._done + 1, self._total + 1):
                made = await producer.produce(step)
                if isinstance(made, NoMoreSteps):
                    if made.error is not None:
                        raise made.error
                    log.warning("the rollouts end before step %d of %d: %s", step, self._total, made.reason)
                    break
                self._enter(ctx, made)
                await recorder.add(
                    RecordedStep(made.record, made.metrics, producer.sampler_state(), producer.reward_state())
                )
        return rollout.version

    def _enter(self, ctx: RunContext, made: Produced) -> None:
        """In the books a recorded sample is one that nobody trains."""
        record = made.record
        ctx.ledger.dropped(sorted(record.completions), "recorded, not trained")
        ctx.ledger.commit_step(record.step)
        self._tokens += sum(len(row.token_ids) for row in record.completions.values())

    def _stage(self, step: int, name: str) -> None:
        what = {"gen": "generating", "reward": "scoring"}.get(name, name)
        self._progress.update(self._task, description=f"step {step}: {what}")

    def _written(self, entry: StepEntry) -> None:
        self._progress.update(self._task, completed=entry.step)
        if not self._console.is_terminal:
            score = "–" if entry.mean_score is None else f"{entry.mean_score:.3f}"
            self._console.print(
                f"step {entry.step}/{self._total}: {entry.sample_count} samples  {entry.token_count} tokens  "
                f"mean score {score}",
                highlight=False,
            )


async def own_version(ctx: RunContext) -> PolicyVersion:
    """The weights that all rollout servers loaded by themselves.

    Raises ConfigError if they differ: a record is of one policy.
    """
    found = {name: (await server.status()).version for name, server in list(ctx.services.rollouts.items())}
    versions = {version for version in found.values() if version is not None}
    if len(versions) != 1:
        told = ", ".join(f"{name}: {'none' if one is None else one.short}" for name, one in sorted(found.items()))
        raise ConfigError(f"the rollout servers do not serve one and the same model ({told})")
    return versions.pop()
