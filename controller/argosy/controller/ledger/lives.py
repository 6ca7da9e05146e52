"""The lives of a run: one line each in `ledger/lives.jsonl`, written before any work.

A life begins with each start of the command, and whenever a run goes back to its last checkpoint, since its trainer
died or another controller took over. Going on from a checkpoint begins a new lineage, since what came after it may have
been published already: the same step numbers will name other weights. A life that ended before its first checkpoint
left a lineage too, which only this file knows of.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from argosy.controller.fence import OPEN, Fence
from argosy.types.errors import storage_error

FILE = "lives.jsonl"


@dataclass(frozen=True, slots=True)
class RunLife:
    """From a start, or a step back, to the next one."""

    run_id: str
    lineage: str
    """Of the weights that it makes; "l0" for the first of a run."""
    term: int
    from_step: int
    """The step whose checkpoint it went on from; 0 without one."""
    started_at: float
    """Unix seconds."""
    cause: str = ""
    """Why the run went back; empty where its command was started."""


def read_lives(folder: Path) -> list[RunLife]:
    """All starts so far, oldest first; a line that was torn by a crash is left out."""
    path = folder / FILE
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(RunLife(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def next_lineage(lives: list[RunLife], run_id: str, saved: str | None, elsewhere: Iterable[int] = ()) -> str:
    """One that no start of this run has used.

    Args:
        lives: Of the run folder.
        run_id: The run that starts.
        saved: Lineage in the checkpoint that it goes on from.
        elsewhere: Numbers of those that it has begun on other machines, as far as that is known.

    >>> next_lineage([], "run-a", None), next_lineage([], "run-a", "l0"), next_lineage([], "run-a", "l0", [0, 1])
    ('l0', 'l1', 'l2')
    """
    used = [*elsewhere, *(number(life.lineage) for life in lives if life.run_id == run_id)]
    if saved is not None:
        used.append(number(saved))
    return f"l{max(used, default=-1) + 1}"


def number(lineage: str) -> int:
    """The number in "l3"."""
    return int(lineage.removeprefix("l"))


def begin_life(
    folder: Path, run_id: str, lineage: str, term: int, from_step: int, cause: str = "", *, fence: Fence = OPEN
) -> RunLife:
    """Enter a start, durably. Raises StorageError, FencedError."""
    life = RunLife(run_id, lineage, term, from_step, round(time.time(), 3), cause)
    path = folder / FILE
    try:
        torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        with fence.writing(), path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(asdict(life)) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(error, path) from error
    return life
