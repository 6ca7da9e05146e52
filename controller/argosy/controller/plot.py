"""The reward curve, as a PNG in the run folder and as characters in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SMOOTHING = 5


def series(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and finite values of one metric."""
    pairs = [(int(row["step"]), row[name]) for row in rows if isinstance(row.get(name), (int, float))]
    pairs = [(step, value) for step, value in pairs if math.isfinite(value)]
    return [step for step, _ in pairs], [float(value) for _, value in pairs]


def smoothed(values: Sequence[float], window: int = SMOOTHING) -> list[float]:
    """Mean over the last `window` values."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def held_out_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the core validation metrics."""
    return sorted({name for row in rows for name in row if name.startswith("val-core/") and "/mean@" in name})


def save_reward_curve(rows: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw reward per step, its running mean, and held-out scores. Returns False when there is nothing to draw."""
    steps, rewards = series(rows, "critic/score/mean")
    if not steps:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(steps, rewards, color="#9ecae1", linewidth=1, label="mean reward of the step")
    axes.plot(steps, smoothed(rewards), color="#08519c", linewidth=2, label=f"mean over {SMOOTHING} steps")
    for name in held_out_names(rows):
        held_out_steps, values = series(rows, name)
        axes.plot(held_out_steps, values, "o--", label="held-out " + name.removeprefix("val-core/"))
    axes.set_xlabel("training step")
    axes.set_ylabel("reward")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    return True


def terminal_curve(rows: Sequence[dict[str, Any]], width: int = 72, height: int = 14) -> str:
    """The same curve as text; empty when there is nothing to draw."""
    steps, rewards = series(rows, "critic/score/mean")
    if len(steps) < 2:
        return ""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.plot(steps, smoothed(rewards), marker="braille")
    plotext.title(f"reward (mean over {SMOOTHING} steps) by training step")
    return str(plotext.build())
