"""What a storm has shown, as the table of docs/reliability.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from support.storm.faults import FAULTS, Fault


def table(found: Sequence[tuple[Fault, float]]) -> str:
    """Markdown: fault, promise, how often, median and worst."""
    took: dict[str, list[float]] = defaultdict(list)
    for fault, seconds in found:
        took[fault.name].append(seconds)
    lines = ["| fault | promised | times | median | worst |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        seconds_of = took.get(fault.name)
        if seconds_of:
            lines.append(
                f"| {fault.name} | {fault.promise}, < {fault.bound_s:g} s | {len(seconds_of)} | "
                f"{median(seconds_of):.1f} s | {max(seconds_of):.1f} s |"
            )
    return "\n".join(lines)
