"""Writes a run's steps while the loop goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from argosy.config import Config
from argosy.controller.fence import OPEN, Fence
from argosy.controller.recording.fitting import tokenizer_digest
from argosy.controller.recording.store import FOLDER, RecordedStep, RecordHead, StepEntry
from argosy.controller.recording.writer import RecordWriter
from argosy.types.errors import StorageError

log = logging.getLogger(__name__)

MOST_PENDING = 2
"""Steps that may wait for the disk: what is beyond that, the loop waits for."""


class StepSink(Protocol):
    """Whoever gets each step as it is trained."""

    async def add(self, made: RecordedStep) -> None:
        """Take a step. Returns at once unless the disk is behind."""

    async def settled(self) -> None:
        """Return when every step that was taken is on disk: before a checkpoint says that it need not come again."""


class NoRecorder:
    """What takes the steps of a run that records nothing."""

    async def add(self, made: RecordedStep) -> None:
        """See StepSink."""

    async def settled(self) -> None:
        """See StepSink."""


class Recorder:
    """Hands steps to a thread that writes them, in order.

        async with Recorder(writer) as recorder:
            await recorder.add(RecordedStep(record, metrics, sampler_state, reward_state))

    Args:
        writer: Where they go.
        max_bytes: The record's size at which it ends, with a warning; 0: none.
        written: Called on the event loop for each step that is on disk.
        must: Whether a step that can't be written is the run's failure (StorageError, from the next `add` or the end);
            else recording stops with a warning, and the run goes on.
    """

    def __init__(
        self,
        writer: RecordWriter,
        *,
        max_bytes: int = 0,
        written: Callable[[StepEntry], None] = lambda entry: None,
        must: bool = False,
    ) -> None:
        self._writer = writer
        self._max_bytes = max_bytes
        self._written = written
        self._must = must
        self._thread = ThreadPoolExecutor(1, "record")
        self._pending: list[asyncio.Future[StepEntry]] = []
        self.stopped = ""
        """Why nothing more is recorded; empty: it goes on."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.settled()
        finally:
            await asyncio.to_thread(self._thread.shutdown)

    async def add(self, made: RecordedStep) -> None:
        """Take a step. Raises StorageError with `must`, if it or one before it can't be written."""
        if self._max_bytes and self._writer.size_bytes >= self._max_bytes:
            self._stop(
                f"it has {self._writer.size_bytes / 1e9:.1f} GB, argosy.record.max_gb is {self._max_bytes / 1e9:g}"
            )
        while len(self._pending) >= MOST_PENDING:
            await self._settle()
        if self.stopped:
            return
        loop = asyncio.get_running_loop()
        self._pending.append(loop.run_in_executor(self._thread, self._writer.write, made))

    async def settled(self) -> None:
        """See StepSink. Raises StorageError with `must`."""
        while self._pending:
            await self._settle()

    async def _settle(self) -> None:
        """Wait for the oldest."""
        oldest = self._pending.pop(0)
        try:
            entry = await asyncio.shield(oldest)
        except (StorageError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # All but the first: free-form values of loops and graders that a row can't hold.
            if self._must:
                raise StorageError(f"a step can't be recorded: {error}") from error
            self._stop(str(error))
        else:
            self._written(entry)

    def _stop(self, why: str) -> None:
        if not self.stopped:
            log.warning("the record %s ends here, the run goes on: %s", self._writer.folder, why)
            self.stopped = why


def open_recorder(
    config: Config,
    run_dir: Path,
    run_id: str,
    first_step: int,
    *,
    rollouts_only: bool = False,
    written: Callable[[StepEntry], None] = lambda entry: None,
    fence: Fence = OPEN,
) -> Recorder:
    """The recorder that a configuration asks for. Raises as RecordWriter does."""
    wanted = config.argosy.record
    head = RecordHead(
        run_id=run_id,
        model=config.actor_rollout_ref.model.path,
        tokenizer=tokenizer_digest(config),
        n=config.actor_rollout_ref.rollout.n,
        train_batch_size=config.data.train_batch_size,
        rollouts_only=rollouts_only,
    )
    folder = Path(wanted.path).expanduser() if wanted.path else run_dir / FOLDER
    writer = RecordWriter(folder, head, after_step=first_step, fence=fence)
    return Recorder(writer, max_bytes=int(wanted.max_gb * 1e9), written=written, must=rollouts_only)


def recorder_of(
    config: Config, run_dir: Path, run_id: str, first_step: int, fence: Fence = OPEN
) -> AbstractAsyncContextManager[StepSink]:
    """The recorder of a training run, which may be none. Raises as RecordWriter does."""
    if not config.argosy.record.enable:
        return nullcontext(NoRecorder())
    return open_recorder(config, run_dir, run_id, first_step, fence=fence)
