"""Checkpoints: the trainers write while training goes on; the manifest makes it a checkpoint when all is complete."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from argosy.controller.context import RunContext
from argosy.controller.copies import Copies
from argosy.controller.recovery import CheckpointStore, publish_latest
from argosy.telemetry.traces import span
from argosy.types.errors import ArgosyError
from argosy.types.records import Mutation

log = logging.getLogger(__name__)


class Saver(Protocol):
    """What a trainer of any kind does for a checkpoint."""

    async def save_checkpoint(self, path: str, ctx: Mutation, *, background: bool = False) -> Any:
        """As `argosy.roles.policy.Training`."""
        ...

    async def finish_save(self, path: str, *, deadline_s: float) -> Any:
        """As `argosy.roles.policy.Training`."""
        ...


class CheckpointSaves:
    """The saves of one run, one at a time.

    `start` returns when every trainer has copied its state, so the next update can't touch what is saved; the rest goes
    on beside training. As a context manager around the run it ends in order: after success or a failure of the run the
    save under way is finished (its own failure is raised, or logged beside the run's); when the run is cancelled it is
    given up, since its leader may be another by then, and leaves no checkpoint.

    Args:
        ctx: The run.
        store: Where checkpoints are kept.
        trainers: By name of their folder in a checkpoint.
        background: False: `start` returns when the checkpoint exists.
        done: Told each checkpoint that exists.
        copies: Where each is copied to before the next one is begun; None: nowhere.
    """

    def __init__(
        self,
        ctx: RunContext,
        store: CheckpointStore,
        trainers: Mapping[str, Saver],
        *,
        background: bool,
        done: Callable[[int, Path], None],
        copies: Copies | None = None,
    ) -> None:
        self._copies = copies
        self._ctx = ctx
        self._store = store
        self._trainers = trainers
        self._background = background
        self._done = done
        self._task: asyncio.Task[None] | None = None

    async def start(self, step: int, state: Mapping[str, Any]) -> None:
        """Save `step`, with the controller's `state` of now. Waits for the save before it, and raises its failure."""
        await self.wait()
        with span("stage.save", step=step):
            working = self._store.begin(step, self._trainers)
            for name, trainer in self._trainers.items():
                expected = self._ctx.trainer_step(name, step)
                mutation = self._ctx.mutation("save", name, step, expected_step=expected)
                await trainer.save_checkpoint(str(working / name), mutation, background=self._background)
            self._task = asyncio.create_task(self._finish(step, working, state), name=f"save step {step}")
            if not self._background:
                await self.wait()

    async def wait(self) -> None:
        """Until no save is under way. Raises the failure of one that has failed, once."""
        if self._task is None:
            return
        await asyncio.wait({self._task})
        task, self._task = self._task, None
        task.result()

    def raise_failure(self) -> None:
        """Raise the failure of a save that has failed; returns at once otherwise."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def _finish(self, step: int, working: Path, state: Mapping[str, Any]) -> None:
        if self._background:
            for name, trainer in self._trainers.items():
                await trainer.finish_save(str(working / name), deadline_s=self._ctx.deadline_s)
        committing = asyncio.create_task(
            asyncio.to_thread(self._store.commit, step, self._ctx.run_id, working, state), name=f"commit step {step}"
        )
        try:
            checkpoint = await asyncio.shield(committing)
        except asyncio.CancelledError:
            await asyncio.wait({committing})  # its thread can't be stopped: whoever goes back must find all or nothing
            raise
        await publish_latest(self._ctx, checkpoint.path.name)
        if self._copies is not None:
            await self._copy(self._copies, step)
        self._done(step, checkpoint.path)

    async def _copy(self, copies: Copies, step: int) -> None:
        """To where a run on another machine would go on from. Raises StorageError, FencedError."""
        began, ended = time.perf_counter(), threading.Event()
        copying = asyncio.create_task(
            asyncio.to_thread(copies.add, step, self._ctx.run_id, lambda: not ended.is_set()), name=f"copy step {step}"
        )
        try:
            await asyncio.shield(copying)
        except asyncio.CancelledError:
            ended.set()  # after the file that it is at; what was sent is of use to the next copy
            await asyncio.wait({copying})
            raise
        self._ctx.measured["checkpoint/copy_s"] = time.perf_counter() - began

    async def __aenter__(self) -> CheckpointSaves:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.wait()
        elif isinstance(error, Exception):
            try:
                await self.wait()
            except (ArgosyError, OSError) as failure:
                log.error("the checkpoint that was being saved when the run failed is lost too: %s", failure)
        elif self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
