"""Looking up single samples: what is known of each, in the surviving lineage and in those that a resume gave up."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from argosy.controller.ledger.entry import BASELINE, DROPPED, TRAINED, staleness_of
from argosy.controller.ledger.live import read_live
from argosy.controller.ledger.segments import Segment, load_segment, steps_in
from argosy.types.errors import InvalidInputError
from argosy.types.ids import SampleId

_NAME = re.compile(r"^e(\d+)-p(\d+)(?:-k(\d+))?(?:-a(\d+))?$")


@dataclass(frozen=True, slots=True)
class Life:
    """One sample in one lineage."""

    row: dict[str, Any]
    step: int | None
    """Of the segment that it is in; None while it is in flight."""
    abandoned: str = ""
    """The lineage, where a resume has given this step up."""


def parse_name(text: str) -> Callable[[SampleId], bool]:
    """Which samples `e0-p12` (a whole group), `e0-p12-k3` or `e0-p12-k3-a0` means. Raises InvalidInputError."""
    match = _NAME.match(text)
    if match is None:
        raise InvalidInputError(f"--sample: a sample looks like e0-p12-k3-a0, or e0-p12 for its group; got {text!r}")
    epoch, position, k, attempt = (None if part is None else int(part) for part in match.groups())
    return lambda sample: (
        (sample.data_epoch, sample.position) == (epoch, position)
        and k in (None, sample.k)
        and attempt in (None, sample.attempt)
    )


def find_lives(run_dir: Path, name: str) -> list[Life]:
    """All lives of a sample or a group, the surviving ones first. Reads a few segments only, however long the run is.

    Raises InvalidInputError for a name that can't be one, CorruptDataError for a damaged segment in the way.
    """
    folder, wanted = run_dir / "ledger", parse_name(name)
    live = [row for row in read_live(folder) if wanted(SampleId.parse(row["sample_id"]))]
    found = _in_segments(folder, wanted, name)
    finished = {life.row["sample_id"] for life in found}
    found += [Life(row, None) for row in live if row["sample_id"] not in finished]
    for abandoned in sorted((folder / "abandoned").glob("*")):
        found += _in_segments(abandoned, wanted, name, abandoned.name)
    return found


def _in_segments(folder: Path, wanted: Callable[[SampleId], bool], name: str, abandoned: str = "") -> list[Life]:
    """A search by halves for each sample: the finished samples of a step are those of the step before and its own."""
    steps, loaded = steps_in(folder), dict[int, Segment]()
    if not steps:
        return []

    def segment(step: int) -> Segment:
        if step not in loaded:
            loaded[step] = load_segment(folder, step)
        return loaded[step]

    found = []
    for sample in filter(wanted, segment(steps[-1]).closed.at(*_place(name))):

        def finished(step: int, sample: SampleId = sample) -> bool:
            return sample in segment(step).closed

        step = steps[bisect_left(steps, True, key=finished)]
        rows = [row for row in segment(step).rows if row["sample_id"] == str(sample)]
        found += [Life(row, step, abandoned) for row in rows]  # none: finished before the first abandoned step
    return found


def _place(name: str) -> tuple[int, int]:
    match = _NAME.match(name)
    assert match is not None  # parse_name has seen it
    return int(match[1]), int(match[2])


def timeline(life: Life) -> list[tuple[str, str]]:
    """(when, what) of each thing that happened to a sample; times after the first are relative to the one before."""
    row = life.row
    weights = row["first_version"] or "none"
    if row["last_version"] != row["first_version"]:
        weights += f" … {row['last_version']}"
    times = "" if row["dispatch_count"] < 2 else f", the last of {row['dispatch_count']} times"
    judged = f"score {row['score']:g}" if row["score"] is not None else f"{row['outcome']}: {row['verdict']}"
    staleness = staleness_of(row)
    ends = {
        TRAINED: f"trained at step {row['trained_step']}, staleness {'unknown' if staleness is None else staleness}",
        BASELINE: f"used as a baseline at step {life.step}",
        DROPPED: f"dropped in step {life.step}: {row['reason']}",
    }
    events = [
        ("drawn_at", f"drawn (row {row['prompt_index']} of the data)"),
        ("dispatched_at", f"dispatched to {row['member']}{times}"),
        ("completed_at", f"completed: {row['token_count']} tokens, {row['finish_reason']}, weights {weights}"),
        ("scored_at", f"judged: {judged}"),
        ("ended_at", ends.get(row["state"], "")),
    ]
    lines, before = [], None
    for name, what in events:
        at = row[name]
        if at is not None:
            lines.append((_clock(at) if before is None else f"+{at - before:.3f} s", what))
            before = at
    if life.step is None:
        lines.append(("now", f"{row['state']}, in no step's segment yet"))
    return lines


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
