"""The close of a step: the books are checked, and what the step finished becomes a segment (segments.py).

Checked is, over the surviving lineage:

- nobody twice: an id that is open or was ever finished can't be drawn, and one that is finished can't be again;
- nobody lost: what the books hold open is exactly what the caller has in flight;
- all accounted: samples ever drawn = finished + in flight, counted independently of each other.

All of it is of the moment in which the close began, and takes long with many samples: it is made to run in a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from argosy.controller.ledger.entry import Entry, in_order
from argosy.controller.ledger.idset import IdSet
from argosy.controller.ledger.segments import LedgerCut, write_segment
from argosy.types.errors import ArgosyError
from argosy.types.ids import GroupId, SampleId


class LedgerError(ArgosyError):
    """The books do not balance: a sample was lost or counted twice. Training must not go on."""


@dataclass(frozen=True, slots=True)
class Closed:
    """What the books say after a step is closed."""

    cut: LedgerCut
    closed: IdSet
    """Everything in segments of this lineage."""
    final: int
    """How many those are, counted by themselves."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The books in the moment in which a step is closed; nothing of it changes any more, but what is open."""

    folder: Path
    step: int
    before: LedgerCut
    ended: Mapping[SampleId, Entry]
    """Finished since then."""
    open: Mapping[SampleId, Entry]
    in_flight: set[GroupId] | None
    """Groups that the caller works on; None where it can't tell."""
    closed: IdSet
    """Everything in segments until now."""
    drawn_count: int
    """Samples ever drawn."""
    final_count: int
    """Samples in segments."""

    def close(self, remove: Callable[[Iterable[SampleId]], None]) -> Closed:
        """Check, and write the segment. `remove`: Told which samples are in it, so that whoever shows what is under way
        forgets them.

        Raises:
            LedgerError: the books do not balance; nothing is written.
            StorageError: the segment can't be written.
        """
        self._check()
        closed = IdSet.from_plain(self.closed.plain())
        ended = in_order(self.ended.values())
        twice = [entry.sample for entry in ended if not closed.add(entry.sample)]
        if twice:
            raise LedgerError(f"step {self.step} finishes samples that an earlier step had finished: {_some(twice)}")
        final = self.final_count + len(ended)
        end = {
            "previous": self.before.sha256,
            "drawn": self.drawn_count,
            "final": final,
            "counts": dict(sorted(Counter(entry.state for entry in ended).items())),
            "closed": closed.plain(),
            "open": IdSet(entry.sample for entry in in_order(self.open.values())).plain(),
        }
        cut = LedgerCut(self.step, write_segment(self.folder, self.step, ended, end))
        # The segment is the record from here on; the live table holds only what is under way, so it stays small.
        remove(self.ended)
        return Closed(cut, closed, final)

    def _check(self) -> None:
        step, finished = self.step, self.final_count + len(self.ended)
        if step <= self.before.step:
            raise LedgerError(f"step {step} is committed after step {self.before.step}")
        if self.in_flight is not None:
            self._check_in_flight(self.in_flight)
        wrong = [entry.sample for entry in self.ended.values() if entry.trained_step not in (None, step)]
        if wrong:
            raise LedgerError(f"samples were trained in another step than {step}: {_some(wrong)}")
        if finished + len(self.open) != self.drawn_count:
            raise LedgerError(
                f"step {step}: {self.drawn_count} samples were drawn, but {finished} are finished and "
                f"{len(self.open)} in flight"
            )

    def _check_in_flight(self, known: set[GroupId]) -> None:
        groups = {sample.group for sample in self.open}
        if lost := groups - known:
            states = Counter(entry.state for sample, entry in self.open.items() if sample.group in lost)
            raise LedgerError(
                f"step {self.step} ends with samples that are neither trained nor dropped, and that nobody works on: "
                f"{dict(states)} of {_some(lost)}"
            )
        if strange := known - groups:
            raise LedgerError(
                f"step {self.step} ends with groups in flight that are not in the books: {_some(strange)}"
            )


def _some(things: Iterable[object]) -> str:
    """The first few of them, for a message."""
    names = sorted(map(str, things))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
