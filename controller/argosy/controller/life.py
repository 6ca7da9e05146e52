"""One life of a run: from a checkpoint, or from the beginning, to the end, with services that are there.

A run has a life for each start of its command, and one more each time that it goes back to its last checkpoint: after
the death of its trainer, or when another controller takes over. Each has a lineage of its own, since the same step
numbers will name other weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from argosy.controller.console import RunConsole
from argosy.controller.context import RunContext
from argosy.controller.control import RunControl
from argosy.controller.ledger import OPEN_STATES, Entry, LedgerCut, rewind
from argosy.controller.ledger.lives import begin_life, next_lineage, number, read_lives
from argosy.controller.loggers.jsonl import was_validated
from argosy.controller.loop import Controller
from argosy.controller.observer import RunObserver
from argosy.controller.prepare import PreparedRun
from argosy.controller.recording.recorder import recorder_of
from argosy.controller.recording.replay import ReplayProducer
from argosy.controller.recovery import PENDING_VALIDATION, Checkpoint
from argosy.controller.rewards.trial import try_prompts
from argosy.controller.stages.validation import ValidationResult
from argosy.controller.takeover import end_abandoned
from argosy.membership.interface import Leadership
from argosy.roles.policy import Training
from argosy.types.errors import ConfigError, FencedError, StateError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who sees and steers a run, in all of its lives."""

    observer: RunObserver
    control: RunControl
    screen: RunConsole


class Life:
    """Trains from where `prepared` stands.

    Args:
        prepared: The run, with the checkpoint to go on from.
        ctx: Services, and a ledger that nothing was entered in; gets its lineage here.
        watchers: See there.
        cause: Why there is this life, if it isn't the first of a start: what `argosy ledger` says of it.
    """

    def __init__(self, prepared: PreparedRun, ctx: RunContext, watchers: Watchers, cause: str = "") -> None:
        self._prepared = prepared
        self._ctx = ctx
        self._watchers = watchers
        self._cause = cause
        self._folder = prepared.run_dir / "ledger"
        self.first_validation: ValidationResult | None = None
        """Of the run: set it before `run` in a life after the first, and take it from there after each."""
        self.controller: Controller | None = None
        """Once there is one."""

    async def run(self, leadership: Leadership) -> tuple[Controller, str | None]:
        """To the last step; the controller, and the folder of the exported model. Raises the first cause of a failure,
        FencedError when another controller comes to lead."""
        prepared, ctx, control = self._prepared, self._ctx, self._watchers.control
        control.unsaved_steps = 0
        async with AsyncExitStack() as stack:
            await self._check_data_sources()
            first_step = prepared.first_step if prepared.continues else 0
            recorder = recorder_of(prepared.config, prepared.run_dir, prepared.run_id, first_step, prepared.store.fence)
            controller = Controller(
                ctx, prepared.sampler, prepared.held_out, prepared.store, prepared.total_steps,
                self._watchers.observer, control,
                producer=None if prepared.replayed is None else ReplayProducer(ctx, prepared.replayed),
                recorder=await stack.enter_async_context(recorder),
                copies=prepared.copies,
            )  # fmt: skip
            self.controller = controller
            if prepared.copies is not None:
                await asyncio.to_thread(prepared.copies.claim, prepared.run_id)
                abandoned = self._begin(await asyncio.to_thread(prepared.copies.lineages))
                await asyncio.to_thread(prepared.copies.note_lineage, number(ctx.lineage))
            else:
                abandoned = self._begin()
            if self._cause:
                log.info("%d samples of the abandoned lineage were ended", await end_abandoned(ctx))
                if prepared.checkpoint:
                    controller.held_out.first = controller.held_out.last = self.first_validation
            await self._restore(controller, abandoned)
            if prepared.services_stay and prepared.checkpoint is None:
                await self._keep_beginning(controller)
            metrics = prepared.saved.get("metrics", {}) if prepared.continues else {}
            self._watchers.observer.begin(first_step, abandoned, metrics)
            try:
                await _while_leading(leadership, controller.run())
            finally:
                self.first_validation = controller.held_out.first
            return controller, await self._export(controller)

    def _begin(self, elsewhere: Sequence[int] = ()) -> str:
        """Give this life its lineage, none of those `elsewhere`; returns the name for what it gives up."""
        prepared, ctx = self._prepared, self._ctx
        lives = read_lives(self._folder)
        saved = str(prepared.saved["lineage"]) if prepared.checkpoint else None
        ctx.lineage = next_lineage(lives, prepared.run_id, saved, elsewhere)
        begin_life(
            self._folder, prepared.run_id, ctx.lineage, ctx.term, prepared.first_step, self._cause,
            fence=prepared.store.fence,
        )  # fmt: skip
        if lives and lives[-1].run_id == prepared.run_id:
            return lives[-1].lineage
        return str(saved) if prepared.continues else f"before-{prepared.run_id}"

    async def _restore(self, controller: Controller, abandoned: str) -> None:
        checkpoint, screen = self._prepared.checkpoint, self._watchers.screen
        if checkpoint is None:
            with self._prepared.store.fence.writing():
                rewind(self._folder, LedgerCut(0, ""), abandoned)
            if self._ctx.services.router is not None and self._cause:
                controller.restore_rewards({})
            screen.start_at(0)
            started = f"starting new run {self._prepared.run_id} in {self._prepared.run_dir}"
            screen.note(started if not self._cause else "going on from the beginning, since there is no checkpoint yet")
            return
        await self._restore_from(controller, checkpoint, abandoned)
        screen.start_at(checkpoint.step)
        screen.note(f"resumed from {checkpoint.path}")

    async def _restore_from(self, controller: Controller, checkpoint: Checkpoint, abandoned: str) -> None:
        prepared, ctx, saved = self._prepared, self._ctx, self._prepared.saved
        cut = LedgerCut(0, "")  # another run's books stay where they are
        if prepared.continues:
            cut = LedgerCut(int(saved["ledger"]["step"]), str(saved["ledger"]["sha256"]))
        with prepared.store.fence.writing():
            rewind(self._folder, cut, abandoned)
        in_flight = checkpoint.in_flight()
        entries = [Entry.from_row(row) for row in in_flight["entries"]]
        if not prepared.continues:  # what the other run has dropped is in its own books
            entries = [entry for entry in entries if entry.state in OPEN_STATES]
        ctx.ledger.resume(cut, entries)
        ctx.counters.update(saved.get("counters", {}))
        controller.restore_kl(float(saved["kl_coef"]))
        controller.state.step = checkpoint.step
        controller.state.cut = cut
        controller.state.counters = dict(ctx.counters)
        controller.state.sampler_state = saved["sampler"]
        unfinished = prepared.continues and saved.get(PENDING_VALIDATION) == checkpoint.step
        if unfinished and not was_validated(prepared.run_dir, checkpoint.step):
            controller.held_out.pending = checkpoint.step
        controller.restore_rewards(saved.get("rewards", {}))
        if in_flight["stream"]:
            controller.restore_stream(in_flight["stream"])
        await _load(ctx, checkpoint, "actor", ctx.services.policy)
        if ctx.services.critic is not None:
            await _load(ctx, checkpoint, "critic", ctx.services.critic)

    async def _keep_beginning(self, controller: Controller) -> None:
        """Save step 0: trainers that outlive this controller are somewhere else when another one takes over."""
        services = self._ctx.services
        for name, trainer in {"trainer": services.policy, "critic": services.critic}.items():
            status = None if trainer is None else await trainer.status()
            if status is not None and status.step:
                raise StateError(
                    f"the {name} is at step {status.step}, and this run begins: it has trained for another run, or "
                    "this one's checkpoints are gone; start the services anew, or name the folder that has them"
                )
        await controller.save()

    async def _export(self, controller: Controller) -> str | None:
        prepared, ctx = self._prepared, self._ctx
        if not prepared.config.argosy.export_hf or prepared.config.trainer.val_only or controller.interrupted:
            return None
        path = prepared.run_dir / "hf"
        step = controller.state.step
        policy_step = ctx.trainer_step("actor", step)
        await ctx.services.policy.export_hf(str(path), ctx.mutation("export", step, expected_step=policy_step))
        if ctx.services.critic is not None:
            critic_path = str(prepared.run_dir / "hf_critic")
            await ctx.services.critic.export_hf(critic_path, ctx.mutation("export-critic", step, expected_step=step))
        return str(path)

    async def _check_data_sources(self) -> None:
        """A data source that no scorer knows is an error before the first token, not a reward of 0. Sessions of agents
        bring their own rewards."""
        prepared, router = self._prepared, self._ctx.services.router
        if router is None or self._cause:  # a life before this one has seen to it
            return
        sessions = prepared.config.argosy.openai.source == "sessions"
        judged = {prompt.data_source for prompt in prepared.held_out} if sessions else prepared.data_sources
        router.check_sources(judged)
        sampled = [] if sessions else prepared.sampler.of_each_kind()
        tolerated = prepared.config.argosy.reward.max_error_rate
        await try_prompts(router, [*sampled, *prepared.held_out], max_error_rate=tolerated)


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
