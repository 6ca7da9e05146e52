"""The books: every sample that is drawn is followed until it is trained at a step, used as a baseline, or dropped.

`commit_step` checks them, over the surviving lineage, and writes what a step finished as a segment (closing.py). A
thread does so while the event loop goes on: with many samples that takes seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from argosy.controller.fence import OPEN, Fence
from argosy.controller.ledger.closing import Closed, Closing, LedgerError
from argosy.controller.ledger.entry import (
    BASELINE,
    COMPLETED,
    DISPATCHED,
    DRAWN,
    DROPPED,
    OPEN_STATES,
    SCORED,
    TRAINED,
    Entry,
    in_order,
)
from argosy.controller.ledger.idset import IdSet
from argosy.controller.ledger.live import LiveTable
from argosy.controller.ledger.segments import LedgerCut, load_segment
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, ScoreResult


class Ledger:
    """The books of one run, written by one controller term. Not thread-safe: the event loop's thread enters things.

    Args:
        folder: `ledger` in the run folder.
        term: The controller's; names the live table.
        fence: Of the run folder.
        clock: Unix seconds.
    """

    def __init__(self, folder: Path, term: int, fence: Fence = OPEN, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._fence = fence
        self._clock = clock
        self._open: dict[SampleId, Entry] = {}
        self._ended: dict[SampleId, Entry] = {}
        """Finished, and not yet in a segment or on the way there."""
        self._closing: dict[SampleId, Entry] = {}
        """Finished, and on the way to a segment."""
        self._closed = IdSet()
        """Everything in segments of this lineage."""
        self._drawn_count = 0
        self._final_count = 0
        self._cut = LedgerCut(0, "")
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._live = LiveTable(folder, term, self._thread)

    def close(self) -> None:
        """Release the live table; committed segments stay."""
        self._live.close()

    def resume(self, cut: LedgerCut, uncommitted: Iterable[Entry] = ()) -> None:
        """Go on after a checkpoint's segment, with what `uncommitted` gave then; anything else is drawn anew.

        Raises CorruptDataError if the segment is missing or damaged.
        """
        if cut.step and cut.sha256:
            segment = load_segment(self._folder, cut.step)
            self._closed, self._final_count = segment.closed, segment.final
        self._cut = cut
        entries = {entry.sample: entry for entry in uncommitted}
        self._open = {sample: entry for sample, entry in entries.items() if entry.state in OPEN_STATES}
        self._ended = {sample: entry for sample, entry in entries.items() if sample not in self._open}
        self._drawn_count = self._final_count + len(entries)
        self._live.changed(entries.values())

    def drawn(self, samples: Iterable[tuple[SampleId, int]]) -> None:
        """Samples (id, dataset row) enter the books. One that is in them, or ever was, is a LedgerError."""
        now, entered = self._now(), []
        for sample, index in samples:
            if sample in self._open or sample in self._ended or sample in self._closing or sample in self._closed:
                raise LedgerError(
                    f"{sample} is drawn a second time; it is already in the books ({self._where(sample)})"
                )
            entry = self._open[sample] = Entry(sample, index, drawn_at=now)
            entered.append(entry)
        self._drawn_count += len(entered)
        self._live.changed(entered)

    def dispatched(self, samples: Iterable[SampleId], member: str) -> None:
        """Samples were sent to a rollout server."""
        now, entries = self._now(), self._entries(samples, DISPATCHED, (DRAWN, DISPATCHED))
        for entry in entries:
            entry.member, entry.dispatched_at = member, now
            entry.dispatch_count += 1
        self._live.changed(entries)

    def completed(self, completions: Sequence[Completion]) -> None:
        """Answers came back whole, with all their turns."""
        now = self._now()
        entries = self._entries([completion.sample_id for completion in completions], COMPLETED, (DRAWN, DISPATCHED))
        for entry, completion in zip(entries, completions, strict=True):
            entry.take_completion(completion)
            entry.completed_at = now
        self._live.changed(entries)

    def scored(self, results: Sequence[ScoreResult]) -> None:
        """Outcomes arrived, failures and abstentions included."""
        now = self._now()
        entries = self._entries([result.sample_id for result in results], SCORED, (DRAWN, DISPATCHED, COMPLETED))
        for entry, result in zip(entries, results, strict=True):
            entry.take_outcome(result)
            entry.scored_at = now
        self._live.changed(entries)

    def trained(self, samples: Iterable[SampleId], step: int) -> None:
        """The optimizer step that saw these samples is done."""
        for entry in self._end(samples, TRAINED):
            entry.trained_step = step

    def baseline(self, samples: Iterable[SampleId]) -> None:
        """Greedy answers whose rewards the others were compared with; they are not trained themselves (ReMax)."""
        self._end(samples, BASELINE)

    def dropped(self, samples: Iterable[SampleId], reason: str) -> None:
        """Samples that will not be trained, with the reason that a person will read."""
        for entry in self._end(samples, DROPPED):
            entry.reason = reason

    @property
    def open_count(self) -> int:
        """Samples under way."""
        return len(self._open)

    def in_flight(self) -> list[Entry]:
        """The open samples as they are now, by id."""
        return [replace(entry) for entry in in_order(self._open.values())]

    def uncommitted(self) -> list[Entry]:
        """All that is in no segment as it is now, open or finished, by id: what a checkpoint keeps beside the cut."""
        return [replace(entry) for entry in in_order((self._open | self._ended).values())]

    def counts(self) -> dict[str, int]:
        """Samples that are in no segment yet, by state."""
        return dict(Counter(entry.state for entry in (*self._open.values(), *self._ended.values())))

    def commit_step(self, step: int, in_flight: Iterable[GroupId] | None = ()) -> LedgerCut:
        """Write what was finished since the last commit as this step's segment.

        Args:
            step: Of the loop; above the last one.
            in_flight: Groups that the caller still works on, for later steps; None where it can't tell.

        Raises:
            LedgerError: the books do not balance; nothing is written.
            StorageError: the segment can't be written; the books stay as they were.
            FencedError: another controller leads now; the books stay as they were.
        """
        closing = self._begin(step, in_flight)
        with self._settled():
            self._live.flush()
            return self._finish(self._thread.submit(closing.close, self._live.remove).result())

    def begin_commit(self, step: int, in_flight: Iterable[GroupId] | None = ()) -> Awaitable[LedgerCut]:
        """`commit_step` of what the books say right now, for an event loop, which goes on while it is awaited: what is
        entered meanwhile is of the next step."""
        self._live.raise_failure()
        return self._commit(self._begin(step, in_flight))

    async def _commit(self, closing: Closing) -> LedgerCut:
        writing = asyncio.get_running_loop().run_in_executor(self._thread, closing.close, self._live.remove)
        with self._settled():
            return self._finish(await writing)

    def _begin(self, step: int, in_flight: Iterable[GroupId] | None) -> Closing:
        if self._closing:
            raise LedgerError(f"step {step} is committed while the one before still is")
        closing = Closing(
            self._folder, step, self._cut, self._ended, dict(self._open), None if in_flight is None else set(in_flight),
            self._closed, self._drawn_count, self._final_count, self._fence,
        )  # fmt: skip
        self._closing, self._ended = self._ended, {}
        self._live.forget(self._closing)
        return closing

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Put back what did not get into a segment."""
        try:
            yield
        finally:
            self._ended = self._closing | self._ended
            self._live.recall(self._closing.values())
            self._closing = {}

    def _finish(self, closed: Closed) -> LedgerCut:
        self._cut, self._closed, self._final_count, self._closing = closed.cut, closed.closed, closed.final, {}
        return self._cut

    def _end(self, samples: Iterable[SampleId], state: str) -> list[Entry]:
        now, entries = self._now(), self._entries(samples, state, OPEN_STATES)
        for entry in entries:
            entry.ended_at = now
            self._ended[entry.sample] = self._open.pop(entry.sample)
        self._live.changed(entries)
        return entries

    def _entries(self, samples: Iterable[SampleId], state: str, before: Sequence[str]) -> list[Entry]:
        """The samples' entries, moved on to `state`, which may follow `before`."""
        entries = []
        for sample in samples:
            entry = self._open.get(sample)
            if entry is None or entry.state not in before:
                raise LedgerError(f"{sample} can't become {state}: {self._where(sample)}")
            entry.state = state
            entries.append(entry)
        return entries

    def _where(self, sample: SampleId) -> str:
        entry = self._open.get(sample) or self._ended.get(sample) or self._closing.get(sample)
        if entry is not None:
            return f"it is {entry.state}"
        return "a step before has finished it" if sample in self._closed else "it is not in the books"

    def _now(self) -> float:
        return round(self._clock(), 3)
