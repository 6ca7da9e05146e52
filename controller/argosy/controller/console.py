"""What a person sees while a run goes on: a progress bar and a live table; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Table

ROWS = 12

STAGES = {
    "gen": "generating",
    "reward": "scoring",
    "ref": "log-probs",
    "update_actor": "updating",
    "update_weights": "syncing weights",
    "parity": "comparing engine and trainer",
    "testing": "validating on held-out prompts",
    "save_checkpoint": "saving a checkpoint",
    "paused": "paused",
}

COLUMNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("reward", ("critic/score/mean",), "{:.3f}"),
    ("accuracy", ("reward/acc/mean", "critic/score/mean"), "{:.3f}"),
    ("length", ("response_length/mean",), "{:.1f}"),
    ("KL", ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"), "{:.4f}"),
    ("grad norm", ("actor/grad_norm",), "{:.3f}"),
    ("tokens/s", ("perf/throughput",), "{:.0f}"),
    ("step s", ("timing_s/step",), "{:.1f}"),
)
"""Heading, the metrics that may fill it (first one present), format."""


def cells(metrics: Mapping[str, float]) -> list[str]:
    """One table row of a step's metrics; a metric that isn't there is a dash."""
    row = []
    for _, names, form in COLUMNS:
        found = next((metrics[name] for name in names if name in metrics), None)
        row.append("–" if found is None else form.format(found))
    return row


class RunConsole:
    """Progress of one run. `live` is False for logs and pipes: then each step is one line."""

    def __init__(self, total_steps: int, console: Console | None = None, live: bool | None = None) -> None:
        self.console = console or Console()
        self._live_wanted = self.console.is_terminal if live is None else live
        self._rows: deque[tuple[int, list[str]]] = deque(maxlen=ROWS)
        self._notes: deque[str] = deque(maxlen=4)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
            console=self.console,
            expand=True,
        )
        self._task = self._progress.add_task("starting", total=total_steps)
        self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._render)
        self._printed_header = False
        self._started = time.monotonic()

    def __enter__(self) -> RunConsole:
        if self._live_wanted:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live_wanted:
            self._live.stop()

    def stage(self, step: int, name: str) -> None:
        """Show what the run waits for."""
        self._progress.update(self._task, description=f"step {step}: {STAGES.get(name, name)}")

    def start_at(self, step: int) -> None:
        """A resumed run starts in the middle of the bar."""
        self._progress.update(self._task, completed=step)

    def step(self, step: int, metrics: Mapping[str, float], *, row: bool = True) -> None:
        """Move the bar, and add a row unless `trainer.logger` leaves the console out."""
        self._progress.update(self._task, completed=step)
        if not row:
            return
        values = cells(metrics)
        self._rows.append((step, values))
        if not self._live_wanted:
            pairs = (f"{heading} {cell}" for (heading, _, _), cell in zip(COLUMNS, values, strict=True))
            self.console.print(f"step {step}: " + "  ".join(pairs), highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """A sentence worth keeping on the screen."""
        self._notes.append(text)
        if not self._live_wanted:
            self.console.print(text, highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        table = Table(expand=True, box=None, header_style="bold cyan", pad_edge=False)
        table.add_column("step", justify="right")
        for heading, _, _ in COLUMNS:
            table.add_column(heading, justify="right")
        for step, row in self._rows:
            table.add_row(str(step), *row)
        return Group(*self._notes, table, self._progress)
