"""`argosy ledger --check`: every checksum and every invariant again, from the files alone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy.controller.ledger.entry import FINAL_STATES, TRAINED, staleness_of
from argosy.controller.ledger.idset import IdSet
from argosy.controller.ledger.segments import Segment, load_segment, steps_in
from argosy.types.errors import ArgosyError
from argosy.types.ids import SampleId

MAX_FAULTS = 1000
"""More than these are counted only."""

OnStep = Callable[[int], None]


@dataclass(slots=True)
class CheckResult:
    """What was looked at, and what is wrong with it."""

    segment_count: int = 0
    abandoned_count: int = 0
    """Segments of steps that a resume gave up: their checksums only."""
    checkpoint_count: int = 0
    sample_count: int = 0
    in_flight_count: int = 0
    """At the newest commit."""
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def fault(self, text: str) -> None:
        """One more thing that is wrong."""
        self.fault_count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(text)


def check_ledger(run_dir: Path, on_step: OnStep = lambda step: None) -> CheckResult:
    """Verify the ledger of a run folder; the run may be under way. Nothing that is damaged raises: it is a fault."""
    folder, result = run_dir / "ledger", CheckResult()
    cuts = _checkpoint_cuts(run_dir, result)  # before the segments: what is saved meanwhile is none of ours
    lineage = _Lineage(result)
    digests: dict[int, set[str]] = defaultdict(set)
    damaged: set[int] = set()
    for step in steps_in(folder):
        segment = _load(folder, step, result)
        lineage.follow(step, segment)
        if segment is None:
            damaged.add(step)
        else:
            digests[step].add(segment.sha256)
        on_step(step)
    for abandoned in sorted((folder / "abandoned").glob("*")):
        for step in steps_in(abandoned):
            result.abandoned_count += 1
            if segment := _load(abandoned, step, result):
                digests[step].add(segment.sha256)
            on_step(step)
    for name, (step, digest) in cuts.items():
        if digest and digest not in digests[step] and step not in damaged:
            result.fault(f"{name}: the ledger's segment of step {step} that it was saved with is missing")
    return result


def _load(folder: Path, step: int, result: CheckResult) -> Segment | None:
    try:
        return load_segment(folder, step)
    except ArgosyError as error:
        result.fault(error.message)
        return None


class _Lineage:
    """Follows the chain, and does the books once more."""

    def __init__(self, result: CheckResult) -> None:
        self._result = result
        self._last: Segment | None = None
        self._last_step = 0
        self._closed: IdSet | None = IdSet()
        """None after a segment that can't be read: the next one's word is taken."""

    def follow(self, step: int, segment: Segment | None) -> None:
        result, last = self._result, self._last
        if self._last_step and step != self._last_step + 1:
            result.fault(f"the segments of steps {self._last_step + 1} to {step - 1} are missing")
            self._closed = self._last = last = None
        self._last_step, self._last = step, segment
        result.segment_count += 1
        if segment is None:
            self._closed = None
            return
        if last is not None and segment.previous != last.sha256:
            result.fault(f"step {step} does not follow from the segment of step {last.step}: one was put in its place")
        if last is None and self._closed is not None and segment.previous:
            result.fault(f"the segments before step {step} are missing")
            self._closed = None
        self._rows(segment)
        self._totals(segment, last)
        result.in_flight_count = len(segment.open)
        self._closed = segment.closed

    def _rows(self, segment: Segment) -> None:
        for row in segment.rows:
            self._result.sample_count += 1
            try:
                fault = self._row_fault(segment.step, row)
            except (KeyError, TypeError, ValueError) as error:
                fault = f"can't be read ({error})"
            if fault:
                self._result.fault(f"step {segment.step}: {row.get('sample_id')} {fault}")

    def _row_fault(self, step: int, row: dict[str, Any]) -> str:
        sample = SampleId.parse(row["sample_id"])
        if row["state"] not in FINAL_STATES:
            return f"is in a segment and yet only {row['state']}"
        if (row["state"] == TRAINED) != (row["trained_step"] == step):
            return f"is {row['state']}, its trained_step is {row['trained_step']}"
        if (staleness_of(row) or 0) < 0:
            return f"was trained in step {step} with tokens of later weights ({row['first_version']})"
        if self._closed is not None and not self._closed.add(sample):
            return "is finished a second time"
        return ""

    def _totals(self, segment: Segment, last: Segment | None) -> None:
        step, fault = segment.step, self._result.fault
        if self._closed is not None and self._closed != segment.closed:
            fault(f"step {step}: the samples that it names as finished are not those of the segments")
        if segment.final != len(segment.closed):
            fault(f"step {step}: it counts {segment.final} finished samples and names {len(segment.closed)}")
        if segment.drawn != segment.final + len(segment.open):
            fault(
                f"step {step}: {segment.drawn} samples were drawn, but {segment.final} are finished and "
                f"{len(segment.open)} in flight"
            )
        if both := [sample for sample in segment.open if sample in segment.closed]:
            fault(f"step {step}: {both[0]} and {len(both) - 1} more are finished and in flight")
        if last is not None:
            lost = [one for one in last.open if one not in segment.open and one not in segment.closed]
            if lost:
                fault(f"step {step}: {lost[0]} and {len(lost) - 1} more were in flight at the step before and are gone")


def _checkpoint_cuts(run_dir: Path, result: CheckResult) -> dict[str, tuple[int, str]]:
    """Where the ledger stood at each checkpoint: a chain that lost its newest end shows there."""
    cuts = {}
    for path in sorted(run_dir.glob("global_step_*/controller.json")):
        try:
            cut = json.loads(path.read_text(encoding="utf-8"))["ledger"]
            cuts[path.parent.name] = int(cut["step"]), str(cut["sha256"])
        except FileNotFoundError:
            continue  # an old one, just removed by the run
        except (OSError, ValueError, KeyError, TypeError) as error:
            result.fault(f"{path.parent.name}: {path.name} can't be read ({error})")
        result.checkpoint_count += 1
    return cuts
