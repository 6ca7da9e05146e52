"""The books: every sample that is drawn is followed until it is trained at a step, used as a baseline, or dropped.

`commit_step` writes what a step finished as an immutable segment (segments.py) and checks, over the surviving lineage:

- nobody twice: an id that is open or was ever finished can't be drawn, and one that is finished can't be again;
- nobody lost: what the books hold open is exactly what the caller has in flight;
- all accounted: samples ever drawn = finished + in flight, counted independently of each other.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

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
)
from argosy.controller.ledger.idset import IdSet
from argosy.controller.ledger.live import LiveTable
from argosy.controller.ledger.segments import LedgerCut, load_segment, write_segment
from argosy.types.errors import ArgosyError
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, ScoreResult


class LedgerError(ArgosyError):
    """The books do not balance: a sample was lost or counted twice. Training must not go on."""


class Ledger:
    """The books of one run, written by one controller term. Not thread-safe: the event loop's thread writes.

    Args:
        folder: `ledger` in the run folder.
        term: The controller's; names the live table.
        clock: Unix seconds.
    """

    def __init__(self, folder: Path, term: int, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._open: dict[SampleId, Entry] = {}
        self._ended: dict[SampleId, Entry] = {}
        """Finished, and not yet in a segment."""
        self._closed = IdSet()
        """Everything in segments of this lineage."""
        self._drawn_count = 0
        self._final_count = 0
        self._cut = LedgerCut(0, "")
        self._live = LiveTable(folder, term)

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
            if sample in self._open or sample in self._ended or sample in self._closed:
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

    def in_flight(self) -> list[Entry]:
        """The open samples as they are now, by id."""
        return [replace(self._open[sample]) for sample in sorted(self._open)]

    def uncommitted(self) -> list[Entry]:
        """All that is in no segment as it is now, open or finished, by id: what a checkpoint keeps beside the cut."""
        return [replace(entry) for _, entry in sorted((self._open | self._ended).items())]

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
        """
        self._check(step, in_flight)
        ended = [self._ended[sample] for sample in sorted(self._ended)]
        closed = IdSet.from_plain(self._closed.plain())
        twice = [sample for sample in self._ended if not closed.add(sample)]
        if twice:
            raise LedgerError(f"step {step} finishes samples that an earlier step had finished: {_some(twice)}")
        final = self._final_count + len(ended)
        end = {
            "previous": self._cut.sha256,
            "drawn": self._drawn_count,
            "final": final,
            "counts": dict(sorted(Counter(entry.state for entry in ended).items())),
            "closed": closed.plain(),
            "open": IdSet(self._open).plain(),
        }
        self._cut = LedgerCut(step, write_segment(self._folder, step, ended, end))
        # The segment is the record from here on; the live table holds only what is under way, so it stays small.
        self._live.remove(self._ended)
        self._closed, self._final_count = closed, final
        self._ended = {}
        return self._cut

    def _check(self, step: int, in_flight: Iterable[GroupId] | None) -> None:
        if step <= self._cut.step:
            raise LedgerError(f"step {step} is committed after step {self._cut.step}")
        if in_flight is not None:
            known, groups = set(in_flight), {sample.group for sample in self._open}
            if lost := groups - known:
                states = Counter(entry.state for sample, entry in self._open.items() if sample.group in lost)
                raise LedgerError(
                    f"step {step} ends with samples that are neither trained nor dropped, and that nobody works on: "
                    f"{dict(states)} of {_some(lost)}"
                )
            if strange := known - groups:
                raise LedgerError(f"step {step} ends with groups in flight that are not in the books: {_some(strange)}")
        wrong = [entry.sample for entry in self._ended.values() if entry.trained_step not in (None, step)]
        if wrong:
            raise LedgerError(f"samples were trained in another step than {step}: {_some(wrong)}")
        accounted = self._final_count + len(self._ended) + len(self._open)
        if accounted != self._drawn_count:
            raise LedgerError(
                f"step {step}: {self._drawn_count} samples were drawn, but {self._final_count + len(self._ended)} are "
                f"finished and {len(self._open)} in flight"
            )

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
        entry = self._open.get(sample) or self._ended.get(sample)
        if entry is not None:
            return f"it is {entry.state}"
        return "a step before has finished it" if sample in self._closed else "it is not in the books"

    def _now(self) -> float:
        return round(self._clock(), 3)


def _some(things: Iterable[object]) -> str:
    """The first few of them, for a message."""
    names = sorted(map(str, things))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
