"""What storms have shown, as the table of docs/reliability.md.

    python -m support.storm.table quiet.log another.log --busy loaded.log     # in tests/: one table of several storms

Each storm prints a line of JSON, by which it can be read again from its log.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from support.storm.faults import FAULTS

Found = Sequence[tuple[str, float]]
"""Name of each fault that was done, and its seconds."""
_BEGINNING = '{"storm":'


def line(found: Found, seed: int, seconds: float) -> str:
    """A storm in one line, with the machine's load at its end."""
    told = {"seed": seed, "seconds": round(seconds, 1), "load": os.getloadavg()[0], "cores": os.cpu_count()}
    faults = [[name, round(took, 2)] for name, took in found]
    return json.dumps({"storm": told, "faults": faults}, ensure_ascii=False)


def faults_in(logs: Iterable[Path]) -> list[tuple[str, float]]:
    """Of all storms that logs tell of."""
    lines = (text for log in logs for text in log.read_text(errors="replace").splitlines())
    storms: list[dict[str, Any]] = [json.loads(text) for text in lines if text.startswith(_BEGINNING)]
    return [(str(name), float(took)) for storm in storms for name, took in storm["faults"]]


def table(quiet: Found, busy: Found = ()) -> str:
    """Markdown: fault, promise, how often, median and worst."""
    head = "| fault | promised | times | median | worst |" + (" busy: times | median | worst |" if busy else "")
    lines = [head, "|---|---|---|---|---|" + ("---|---|---|" if busy else "")]
    groups = [_by_name(quiet), *([_by_name(busy)] if busy else [])]
    for fault in FAULTS:
        if any(fault.name in group for group in groups):
            told = " | ".join(_figures(group.get(fault.name, [])) for group in groups)
            lines.append(f"| {fault.name} | {fault.promise}, < {fault.bound_s:g} s | {told} |")
    return "\n".join(lines)


def _by_name(found: Found) -> dict[str, list[float]]:
    took: dict[str, list[float]] = defaultdict(list)
    for name, seconds in found:
        took[name].append(seconds)
    return took


def _figures(seconds: list[float]) -> str:
    if not seconds:
        return "0 | – | –"
    return f"{len(seconds)} | {median(seconds):.1f} s | {max(seconds):.1f} s"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="One table of several storms, from their logs.")
    parser.add_argument("logs", nargs="*", type=Path, help="of storms on a machine that had nothing else to do")
    parser.add_argument("--busy", nargs="*", type=Path, default=[], help="of storms on a loaded one")
    asked = parser.parse_args()
    quiet, busy = faults_in(asked.logs), faults_in(asked.busy)
    print(f"{len(quiet) + len(busy)} faults, {len(busy)} of them on a loaded machine\n\n{table(quiet, busy)}")


if __name__ == "__main__":
    main()
