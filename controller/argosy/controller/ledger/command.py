"""`argosy ledger`: finds the ledger, and prints what check.py, summary.py and lookup.py have to say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from argosy.controller.ledger.check import check_ledger
from argosy.controller.ledger.lives import RunLife, read_lives
from argosy.controller.ledger.lookup import find_lives, timeline
from argosy.controller.ledger.segments import load_segment, steps_in
from argosy.controller.ledger.summary import Summary, percentiles, summarise
from argosy.types.errors import InvalidInputError

SHOWN = 12
"""Reasons, servers and faults that are printed; --json has all of them."""
PROGRESS_FROM = 200
"""Segments from which on reading takes long enough for a bar."""


def find_run(path: Path) -> Path:
    """The run folder that `path` means. Raises InvalidInputError, with the folders that may have been meant."""
    if not path.is_dir():
        raise InvalidInputError(f"there is no folder {path}: give the folder of a run (trainer.default_local_dir)")
    if _has_ledger(path):
        return path
    for parent in (path.resolve().parent, path.resolve().parent.parent):  # its ledger folder, or a checkpoint's part
        if _has_ledger(parent):
            return parent
    inside = sorted(child for child in path.glob("*") if _has_ledger(child))
    inside = inside or sorted(child for child in path.glob("*/*") if _has_ledger(child))
    hint = f"; did you mean {' or '.join(map(str, inside[:3]))}?" if inside else ""
    raise InvalidInputError(f"{path} is no run folder: it has no ledger{hint}")


def show_summary(path: Path, *, as_json: bool) -> int:
    """Counts, reasons, ages, servers, staleness."""
    run_dir = find_run(path)
    with _progress(run_dir) as on_step:
        summary = summarise(run_dir, on_step)
    lives = read_lives(run_dir / "ledger")
    if as_json:
        print(json.dumps(summary.plain() | {"lives": [asdict(life) for life in lives]}))
    else:
        _print_summary(run_dir, summary)
        _print_lives(lives)
    return 0


def show_sample(path: Path, name: str, *, as_json: bool) -> int:
    """One sample's life, or a group's."""
    run_dir = find_run(path)
    lives = find_lives(run_dir, name)
    if not lives:
        raise InvalidInputError(f"the ledger of {run_dir} knows no sample {name}: it was never drawn, or is misspelt")
    if as_json:
        print(json.dumps([{"step": life.step, "abandoned": life.abandoned, **life.row} for life in lives]))
        return 0
    for life in lives:
        given_up = f" · of lineage {life.abandoned}, which a resume gave up" if life.abandoned else ""
        print(f"{life.row['sample_id']}{given_up}")
        for when, what in timeline(life):
            print(f"  {when:>27}  {what}")
    return 0


def show_step(path: Path, step: int, *, as_json: bool) -> int:
    """What a step finished."""
    run_dir = find_run(path)
    steps = steps_in(run_dir / "ledger")
    if step not in steps:
        known = f"it has steps {steps[0]} to {steps[-1]}" if steps else "no step is committed yet"
        raise InvalidInputError(f"--step: the ledger of {run_dir} has no step {step}; {known}")
    segment = load_segment(run_dir / "ledger", step)
    if as_json:
        print(json.dumps({"step": step, "counts": dict(segment.counts), "samples": list(segment.rows)}))
        return 0
    table = Table("sample", "became", "score", "tokens", "weights", "server", "s", "reason", box=None, pad_edge=False)
    for row in segment.rows:
        seconds = "" if row["ended_at"] is None else f"{row['ended_at'] - row['drawn_at']:.1f}"
        score = "" if row["score"] is None else f"{row['score']:g}"
        table.add_row(
            row["sample_id"], row["state"], score, str(row["token_count"] or 0), row["first_version"] or "",
            row["member"] or "", seconds, row["reason"] or "",
        )  # fmt: skip
    print(f"step {step}: {_counts(Counter(segment.counts))}; {len(segment.open)} in flight at its end")
    Console(highlight=False).print(table)
    return 0


def show_check(path: Path, *, as_json: bool) -> int:
    """Verify everything; 1 if anything is wrong."""
    run_dir = find_run(path)
    with _progress(run_dir) as on_step:
        result = check_ledger(run_dir, on_step)
    looked_at = (
        f"{result.segment_count} segments, {result.sample_count} samples, {result.checkpoint_count} checkpoints, "
        f"{result.abandoned_count} abandoned segments"
    )
    if as_json:
        print(
            json.dumps(
                {
                    "segments": result.segment_count,
                    "abandoned_segments": result.abandoned_count,
                    "checkpoints": result.checkpoint_count,
                    "samples": result.sample_count,
                    "in_flight": result.in_flight_count,
                    "fault_count": result.fault_count,
                    "faults": result.faults,
                }
            )
        )
    elif result.fault_count:
        for fault in result.faults[:SHOWN]:
            print(f"✗ {fault}")
        if result.fault_count > SHOWN:
            print(f"… and {result.fault_count - SHOWN} more")
        print(f"the ledger of {run_dir} is damaged or does not balance: {result.fault_count} faults in {looked_at}")
    else:
        print(
            f"✓ {looked_at}: every checksum is right, no sample was finished twice, none is lost; "
            f"{result.in_flight_count} were in flight at the newest step"
        )
    return 1 if result.fault_count else 0


def _print_summary(run_dir: Path, summary: Summary) -> None:
    console = Console(highlight=False)
    steps = f"steps {summary.steps[0]} to {summary.steps[-1]}" if summary.steps else "no step committed yet"
    print(f"{run_dir} · {steps}")
    print(f"  finished   {_counts(summary.states) or 'nothing'}")
    if summary.live:
        print(f"  under way  {_counts(summary.live)}")
    if summary.redispatched or summary.mixed:
        print(f"  {summary.redispatched} sent out more than once, {summary.mixed} with tokens of several weights")
    if summary.reasons:
        print("\ndropped because")
        for reason, count in summary.reasons.most_common(SHOWN):
            print(f"  {count:>8}  {reason}")
    if summary.staleness:
        print("\nstaleness, in steps, of trained samples")
        total = sum(summary.staleness.values())
        for steps_old, count in sorted(summary.staleness.items()):
            print(f"  {steps_old:>8}  {count:>8}  {'█' * max(1, round(40 * count / total))}")
    timed = {name: percentiles(values) for name, values in summary.spans.items() if len(values)}
    if timed:
        table = Table("seconds, of trained samples", "p50", "p90", "p99", "max", box=None)
        for name, found in timed.items():
            table.add_row(name, *(f"{value:.2f}" for value in found.values()))
        print()
        console.print(table)
    if summary.servers:
        table = Table("server", "samples", "tokens", box=None)
        for name, count in summary.servers.most_common(SHOWN):
            table.add_row(name, str(count), str(summary.tokens[name]))
        print()
        console.print(table)


def _print_lives(lives: Sequence[RunLife]) -> None:
    """Where the run went back, and why; nothing of a run that was only started once."""
    if len(lives) < 2:
        return
    print(f"\nlineages, the last {min(SHOWN, len(lives))} of {len(lives)}")
    for life in lives[-SHOWN:]:
        when = datetime.fromtimestamp(life.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        began = f"from step {life.from_step}" if life.from_step else "from the beginning"
        print(f"  {life.lineage:>5}  {when}  {began}: {life.cause or 'the command was started'}")


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def _has_ledger(path: Path) -> bool:
    folder = path / "ledger"
    return any(any(folder.glob(name)) for name in ("step_*.jsonl.gz", "live-term*.sqlite"))


@contextmanager
def _progress(run_dir: Path) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, in a terminal, where there is much to read."""
    total = sum(1 for _ in (run_dir / "ledger").rglob("step_*.jsonl.gz"))
    console = Console(stderr=True)
    if total < PROGRESS_FROM or not console.is_terminal:
        yield lambda step: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("reading segments", total=total)
        yield lambda step: bar.advance(task)
