"""What is printed when a run ends: where things are, the reward curve, and held-out accuracy before and after."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from argosy.controller.files import write_atomically
from argosy.controller.loggers.jsonl import read_metrics
from argosy.controller.plot import save_reward_curve, terminal_curve
from argosy.controller.stages.validation import ValidationResult
from argosy.controller.validation_metrics import mean_interval, paired_difference
from argosy.types.errors import storage_error


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out score of one moment, with its 95 % interval."""

    step: int
    mean: float
    low: float
    high: float
    prompt_count: int

    def text(self) -> str:
        """As a person reads it: shares as percentages, other scores as they are."""
        show = "{:.1%}" if self.low >= 0 and self.high <= 1 else "{:.3f}"
        mean, low, high = (show.format(value) for value in (self.mean, self.low, self.high))
        return f"{mean}  [95 % interval {low} to {high}, {self.prompt_count} prompts]"


@dataclass(frozen=True, slots=True)
class RunReport:
    """The end of a run, for people and as report.json for machines."""

    run_id: str
    run_dir: str
    step: int
    version: str
    duration_s: float
    checkpoint: str | None
    exported_model: str | None
    before: HeldOut | None
    after: HeldOut | None
    change: float | None
    """Mean change over the same held-out prompts."""
    change_half_width: float | None
    """Half the width of its paired 95 % interval."""


def held_out(result: ValidationResult | None) -> HeldOut | None:
    """Summarise a validation pass."""
    if result is None or not result.per_prompt:
        return None
    scores = list(result.per_prompt.values())
    low, high = mean_interval(scores)
    return HeldOut(result.step, sum(scores) / len(scores), low, high, len(scores))


def compare(before: ValidationResult | None, after: ValidationResult | None) -> tuple[float | None, float | None]:
    """Paired change between two passes over the same prompts."""
    if before is None or after is None or before is after:
        return None, None
    return paired_difference(before.per_prompt, after.per_prompt)


def write_report(report: RunReport, console: Console) -> None:
    """Save report.json and reward_curve.png in the run folder, and print the summary."""
    run_dir = Path(report.run_dir)
    write_atomically(run_dir / "report.json", (json.dumps(asdict(report), indent=1) + "\n").encode())
    rows = read_metrics(run_dir / "metrics.jsonl")
    picture = run_dir / "reward_curve.png"
    try:
        drawn = save_reward_curve(rows, picture)
    except OSError as error:
        raise storage_error(error, picture) from error
    if curve := terminal_curve(rows):
        console.print(Text.from_ansi(curve))
    console.print(f"run {report.run_id}: step {report.step}, {report.duration_s / 60:.1f} min", highlight=False)
    console.print(_places(report, run_dir, drawn))
    for text in _sentences(report):
        console.print(text, highlight=False)


def _places(report: RunReport, run_dir: Path, drawn: bool) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column("what", style="bold cyan")
    table.add_column("where", overflow="fold")
    places: list[tuple[str, Any]] = [
        ("checkpoint", report.checkpoint),
        ("exported model", report.exported_model),
        ("metrics", run_dir / "metrics.jsonl"),
        ("TensorBoard", run_dir / "tensorboard"),
        ("traces", run_dir / "traces"),
        ("logs", run_dir / "logs"),
        ("ledger", run_dir / "ledger"),
        ("reward curve", run_dir / "reward_curve.png" if drawn else None),
        ("resolved config", run_dir / "config.yaml"),
    ]
    for what, where in places:
        if where is not None and Path(where).exists():
            table.add_row(what, str(where))
    return table


def _sentences(report: RunReport) -> list[str]:
    sentences = []
    for name, moment in (("before", report.before), ("after", report.after)):
        if moment is not None:
            sentences.append(f"held-out accuracy {name} (step {moment.step}): {moment.text()}")
    if report.change is not None and report.change_half_width is not None:
        sentences.append(f"change on the same prompts: {report.change:+.1%} ± {report.change_half_width:.1%}")
    return sentences
