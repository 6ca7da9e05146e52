"""The loop: draw prompts, generate, score, advantages, update, sync; validate and save now and then.

`_train` asks a producer for one step after the other, learns and publishes. With `argosy.max_staleness` 0 the producer
generates a step when it is asked for it (producing.py), which is synchronous training. Above 0, groups of samples come
in beside the trainer, through a gate that bounds how old they can be when they are trained (stream.py, staleness.py).

    argosy train → cli/train.py → Controller.run (here) → stages/*.py → algorithms/*
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from argosy.controller.agents.build import build_agents
from argosy.controller.canary import warn_of_disagreement
from argosy.controller.context import RunContext
from argosy.controller.control import RunControl
from argosy.controller.copies import Copies
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.garbage import Collections, own_collections
from argosy.controller.loop_state import LoopState
from argosy.controller.metrics import performance_metrics
from argosy.controller.openai.endpoint import open_endpoint
from argosy.controller.producing import NoMoreSteps, Produced, StepProducer, StepRecord
from argosy.controller.recording.recorder import NoRecorder, StepSink
from argosy.controller.recording.store import RecordedStep
from argosy.controller.recovery import IN_FLIGHT, PENDING_VALIDATION, CheckpointStore
from argosy.controller.stages.held_out import HeldOutPasses
from argosy.controller.stages.learn import Learner
from argosy.controller.stages.newcomers import Newcomers
from argosy.controller.stages.parity import PROMPT_COUNT, ParityGate
from argosy.controller.stages.relay import catch_up
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.save import CheckpointSaves
from argosy.controller.stages.stragglers import leave_out
from argosy.controller.stages.sync import publish_and_sync
from argosy.controller.stages.validation import ValidationResult
from argosy.controller.stream_build import build_producer
from argosy.controller.timing import timed
from argosy.telemetry.traces import span
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import Prompt

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Whoever watches a run: loggers, console, dumps. Must not raise for its own troubles (case H4)."""

    def stage(self, step: int, name: str) -> None:
        """The loop now waits for this stage of this step."""

    def step_done(self, step: int, metrics: Mapping[str, float], record: StepRecord) -> None:
        """A training step is complete."""

    def validated(self, step: int, result: ValidationResult, prompts: Sequence[Prompt]) -> None:
        """A validation pass is complete."""

    def checkpointed(self, step: int, path: Path) -> None:
        """A checkpoint exists."""


class Controller:
    """Runs one training job to its last step. Without rollout servers (a replay) nothing is synced and validated.

    `producer`: What makes the steps; None: what the configuration asks for. `recorder`: Gets each step as trained.
    `copies`: Where checkpoints are copied to.
    """

    def __init__(
        self,
        ctx: RunContext,
        sampler: PromptSampler,
        held_out: Sequence[Prompt],
        store: CheckpointStore,
        total_steps: int,
        observer: Observer,
        control: RunControl,
        producer: StepProducer | None = None,
        recorder: StepSink | None = None,
        copies: Copies | None = None,
    ) -> None:
        self.ctx = ctx
        self.state = LoopState(sampler_state=sampler.state())
        self._learner = Learner(ctx, self._stage)
        self._total_steps = total_steps
        self._first_step = 0
        self._noted = True
        self._observer = observer
        self._control = control
        self._saves = CheckpointSaves(
            ctx,
            store,
            {"actor": ctx.services.policy} | ({"critic": ctx.services.critic} if ctx.services.critic else {}),
            background=ctx.config.argosy.trainer.background_save,
            done=self._saved,
            copies=copies,
        )
        self._rollout = RolloutStage(ctx)
        if self._rollout.singles.slow is not None:
            self._rollout.singles.slow.stalled = partial(leave_out, ctx, self._rollout)
        self._agents = build_agents(ctx, self._rollout)
        self._rollout.answerer = self._agents or self._rollout
        self._newcomers = Newcomers(ctx, self._rollout, catch_up)
        self._parity = ParityGate(ctx, self._rollout, sampler.first_prompts(PROMPT_COUNT))
        self._producer = producer or build_producer(ctx, sampler, self._rollout, self._stage, total_steps)
        self._recorder = recorder or NoRecorder()
        self._collections = Collections()
        self.held_out = HeldOutPasses(ctx, self._rollout, held_out, self._validated)
        """Validation passes; a run that goes on is told here which one is to be repeated."""

    async def run(self) -> None:
        """From wherever `state` is to the last step. Raises the first cause if anything fails."""
        try:
            with own_collections() as self._collections:
                await self._run()
        finally:
            self._parity.cancel()
            await self._newcomers.close()
            self._rollout.singles.close()
            await self._rollout.turns.close()
            if self._agents is not None:
                self._agents.close()

    async def _run(self) -> None:
        trainer = self.ctx.config.trainer
        with span("start", step=self.state.step):
            await self._rollout.check_sleep()
            await self._sync()
            await self._settle_parity()
            unknown = trainer.val_before_train and self.held_out.first is None
            wanted = unknown or trainer.val_only or self.held_out.pending is not None
            validates = bool(self.held_out.prompts) and wanted
            if validates and not self.held_out.overlaps:
                await self._validate()
        if trainer.val_only:
            return
        self._first_step = self.state.step
        try:
            endpoint = open_endpoint(self.ctx, self._rollout, self._producer)
            async with self._saves, endpoint, asyncio.TaskGroup() as tasks:
                if validates and self.held_out.overlaps:
                    self.held_out.begin(self.state.step, tasks)
                producing = tasks.create_task(self._producer.run(), name="produce")
                training = tasks.create_task(self._train(tasks), name="train")
                training.add_done_callback(lambda _: producing.cancel())
        except BaseExceptionGroup as group:
            raise first_cause(group) from None
        finally:
            self._parity.cancel()

    # -- training ----------------------------------------------------------------------------------------------------

    async def _train(self, tasks: asyncio.TaskGroup) -> None:
        while self.state.step < self._total_steps:
            produced = await self._control.unless_interrupted(self._producer.produce(self.state.step + 1))
            if produced is None:  # whatever is under way is generated again; the steps before it are kept
                await self._finish_early()
                return
            if isinstance(produced, NoMoreSteps):
                await self._run_out(produced)
                return
            self.held_out.produced()
            await self._rollout.sleep(self.state.step + 1)
            await self._train_step(produced, tasks)
            self._saves.raise_failure()
            if self.state.step == self._total_steps:
                return
            await self._control.at_step_boundary(self.state.step)
            if self._control.stop_requested:
                await self._finish_early()
                return

    async def _train_step(self, produced: Produced, tasks: asyncio.TaskGroup) -> None:
        record, step, timing = produced.record, produced.record.step, produced.timing
        with span("step", parent=produced.trace, step=step):
            metrics = dict(produced.metrics)
            with timed(timing, "parity"):
                metrics |= await self._settle_parity()  # before anything is trained on what that engine sampled
            batch, more, fates = await self._learner.prepare(record, timing)
            metrics |= more
            metrics |= await self._learner.update(batch, step, timing)
            self._learner.account(fates, step)
            if self.held_out.under_way:  # of the weights that are on the servers until now
                with timed(timing, "testing"):
                    await self._settle_validation(step)
            self.state.step = step
            with timed(timing, "update_weights"):
                await self._sync()
            validates = bool(self.held_out.prompts) and self._due(self.ctx.config.trainer.test_freq)
            if validates or step == self._total_steps or not self._parity.may_overlap:
                with timed(timing, "parity"):
                    metrics |= await self._settle_parity()
            await self._commit(step)
            kept = RecordedStep(record, produced.metrics, self.state.sampler_state, self.state.reward_state)
            await self._recorder.add(kept)
            self.state.counters = dict(self.ctx.counters)
            self._control.unsaved_steps += 1
            if validates and self.held_out.overlaps and step < self._total_steps:
                self.held_out.begin(step, tasks)
            elif validates:
                with timed(timing, "testing"):
                    await self._validate()
            self.state.metrics = self._step_metrics(batch, metrics, produced)
            if self._saves_now():
                with timed(timing, "save_checkpoint"):
                    await self.save()
        self.state.metrics = metrics = self._step_metrics(batch, metrics, produced)
        warn_of_disagreement(self.ctx.config, metrics, step)
        self._observer.step_done(step, metrics, record)
        self._control.view.metrics = metrics
        self._collections.step_done(self.ctx.ledger.open_count)

    async def _commit(self, step: int) -> None:
        """Close the books of a step, and note what is under way in the same moment."""
        closing = self.ctx.ledger.begin_commit(step, self._producer.open_groups())
        # All tokens under way are much: they are noted where they will be saved. Where nothing is under way, what comes
        # after this moment is no part of the step, and must not be in what a later save of it keeps.
        self._noted = self._saves_now() or not self._producer.open_groups()
        self._note(everything=self._noted)
        self.state.cut = await closing

    def _note(self, *, everything: bool) -> None:
        """What a checkpoint of the present step needs, all of one moment."""
        self.state.sampler_state = self._producer.sampler_state()
        self.state.reward_state = self._producer.reward_state()
        self.state.kl_coef, self.state.noted_step = self.kl_coef, self.state.step
        if everything:
            self.state.stream = self._producer.state()
            self.state.entries = [entry.row() for entry in self.ctx.ledger.uncommitted()]

    def _saves_now(self) -> bool:
        return self.state.step == self._total_steps or self._due(self.ctx.config.trainer.save_freq)

    def _step_metrics(
        self, batch: TrajectoryBatch, metrics: Mapping[str, float], produced: Produced
    ) -> dict[str, float]:
        """All of a step's metrics, with the times until now."""
        record, timing = produced.record, produced.timing
        timing["step"] = time.perf_counter() - produced.started
        return {
            **metrics,
            **performance_metrics(batch, timing, metrics["rollout/generated_tokens"]),
            **self.state.counters,
            **self.ctx.measured,
            "training/global_step": float(record.step),
            "training/epoch": float(record.prompts[0].group.data_epoch),
        }

    async def _sync(self) -> None:
        self._stage(self.state.step, "update_weights")
        with span("stage.sync", step=self.state.step):
            if self.ctx.services.has_rollouts:
                self._parity.expect()
                self.state.version = await publish_and_sync(self.ctx, self._rollout, self.state.step)
        self._producer.synced(self.state.step)
        self._control.view.step, self._control.view.version = self.state.step, self.state.version
        self._parity.begin(self.state.step)

    async def _settle_parity(self) -> dict[str, float]:
        self._stage(self.state.step, "parity")
        with span("stage.parity", step=self.state.step):
            return await self._parity.settle()

    async def _validate(self) -> None:
        self._stage(self.state.step, "testing")
        await self.held_out.run(self.state.step)

    async def _settle_validation(self, step: int) -> None:
        """Wait, in `step`, for the pass that runs beside training, if one does."""
        if self.held_out.under_way:
            self._stage(step, "testing")
            await self.held_out.settle()

    def _validated(self, result: ValidationResult) -> None:
        self._observer.validated(result.step, result, self.held_out.prompts)

    @property
    def kl_coef(self) -> float:
        """Of KL in the reward, for the next step."""
        return self._learner.kl.coef

    def restore_kl(self, coef: float) -> None:
        """Go on with a checkpoint's coefficient of KL in the reward."""
        self._learner.kl.coef = coef

    @property
    def interrupted(self) -> bool:
        """Whether the run ended because a signal asked for it."""
        return self._control.interrupted

    def restore_rewards(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's running figures of the reward services."""
        self.state.reward_state = state
        self._producer.restore_rewards(state)

    def restore_stream(self, state: Mapping[str, Any]) -> None:
        """Go on with the groups that were under way at a checkpoint. Raises ConfigError where this run can't."""
        self.state.stream = state
        self._producer.restore(state)

    async def save(self) -> None:
        """Begin a checkpoint of the step just finished; it is written while training goes on."""
        self._stage(self.state.step, "save_checkpoint")
        if not self._noted:
            self._note(everything=True)
        await self._recorder.settled()  # else a kill between the two leaves a hole in the record
        await self._saves.start(self.state.step, self.controller_state())

    def _saved(self, step: int, path: Path) -> None:
        self._control.unsaved_steps = self.state.step - step
        self._observer.checkpointed(step, path)

    def controller_state(self) -> dict[str, Any]:
        """What the controller needs to go on from here."""
        return {
            "run_id": self.ctx.run_id,
            "term": self.ctx.term,
            "step": self.state.step,
            "lineage": self.ctx.lineage,
            "version": None if self.state.version is None else self.state.version.short,
            "sampler": dict(self.state.sampler_state),
            "rewards": dict(self.state.reward_state),
            "ledger": {"step": self.state.cut.step, "sha256": self.state.cut.sha256},
            "kl_coef": self.kl_coef,
            "counters": dict(self.state.counters),
            "metrics": dict(self.state.metrics),
            PENDING_VALIDATION: self.held_out.pending,
            IN_FLIGHT: {"stream": dict(self.state.stream), "entries": list(self.state.entries)},
        }

    def committed_state(self) -> dict[str, Any] | None:
        """As `controller_state`, of the last step whose books are closed, wherever the loop is by now; None before the
        first, and where something may be under way between two steps."""
        step, state = self.state.cut.step, self.state
        if state.noted_step != step or self.ctx.config.argosy.streams:
            return None
        metrics = dict(state.metrics) if state.metrics.get("training/global_step") == step else {}
        return self.controller_state() | {"step": step, "kl_coef": state.kl_coef, "metrics": metrics, "version": None}

    async def _finish_early(self) -> None:
        """A stop was asked for: keep the work."""
        log.info("stopping after step %d as asked", self.state.step)
        if self.interrupted:  # there is little time: a checkpoint says that the pass is to be repeated
            self.held_out.cancel()
        await self._settle_validation(self.state.step)
        if self.state.step > self._first_step and not self._due(self.ctx.config.trainer.save_freq):
            await self.save()

    async def _run_out(self, end: NoMoreSteps) -> None:
        """There will be no further step: validate and save what is not yet, then end, or raise the error behind it."""
        if end.error is None:
            log.warning("the run ends after step %d of at most %d: %s", self.state.step, self._total_steps, end.reason)
        await self._settle_validation(self.state.step)
        if self.state.step > self._first_step:
            frequency = self.ctx.config.trainer.test_freq
            if self.held_out.prompts and frequency > 0 and not self._due(frequency):
                await self._validate()
            if not self._due(self.ctx.config.trainer.save_freq):
                await self.save()
        if end.error is not None:
            raise end.error

    def _due(self, frequency: int) -> bool:
        """Whether something that happens every `frequency` steps happens now; always at the last step; never if < 1."""
        return frequency > 0 and (self.state.step % frequency == 0 or self.state.step == self._total_steps)

    def _stage(self, step: int, name: str) -> None:
        self._control.at_stage(name)
        self._observer.stage(step, name)


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf of nested exception groups: what a person needs to see."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
