"""What is printed when a run ends: where things are, the reward curve, and held-out accuracy before and after."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from argosy.controller.loggers.jsonl import read_metrics
from argosy.controller.plot import save_reward_curve, terminal_curve
from argosy.controller.stages.validation import ValidationResult
from argosy.controller.validation_metrics import paired_difference, wilson_interval


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out accuracy of one moment, with its 95 % interval (Wilson)."""

    step: int
    mean: float
    low: float
    high: float
    prompt_count: int


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


def held_out(step: int, result: ValidationResult | None) -> HeldOut | None:
    """Summarise a validation pass."""
    if result is None or not result.per_prompt:
        return None
    scores = list(result.per_prompt.values())
    low, high = wilson_interval(sum(scores), len(scores))
    return HeldOut(step, sum(scores) / len(scores), low, high, len(scores))


def compare(before: ValidationResult | None, after: ValidationResult | None) -> tuple[float | None, float | None]:
    """Paired change between two passes over the same prompts."""
    if before is None or after is None or before is after:
        return None, None
    return paired_difference(before.per_prompt, after.per_prompt)


def write_report(report: RunReport, console: Console) -> None:
    """Save report.json and reward_curve.png in the run folder, and print the summary."""
    run_dir = Path(report.run_dir)
    (run_dir / "report.json").write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    rows = read_metrics(run_dir / "metrics.jsonl")
    drawn = save_reward_curve(rows, run_dir / "reward_curve.png")
    if curve := terminal_curve(rows):
        console.print(Text.from_ansi(curve))
    console.print(_places(report, run_dir, drawn))
    for text in _sentences(report):
        console.print(text, highlight=False)


def _places(report: RunReport, run_dir: Path, drawn: bool) -> Table:
    table = Table(title=f"run {report.run_id}: {report.step} steps in {report.duration_s / 60:.1f} min", box=None)
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
            sentences.append(
                f"held-out accuracy {name} (step {moment.step}): {moment.mean:.1%}"
                f"  [95 % interval {moment.low:.1%} to {moment.high:.1%}, {moment.prompt_count} prompts]"
            )
    if report.change is not None and report.change_half_width is not None:
        sentences.append(f"change on the same prompts: {report.change:+.1%} ± {report.change_half_width:.1%}")
    return sentences
