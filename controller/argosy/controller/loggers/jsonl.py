"""`metrics.jsonl`: one line per step, the record that everything else can be rebuilt from.

It holds the surviving lineage only. Steps that a resume gives up, since they came after the checkpoint that it goes on
from, are moved to `metrics.abandoned.jsonl`, each row with the lineage that it was of.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.config import Config
from argosy.controller.files import write_atomically

FILE, ABANDONED = "metrics.jsonl", "metrics.abandoned.jsonl"
_TRAINED = "training/global_step"
"""In the rows of training steps, and not in those of validation."""


class JsonlLogger:
    """Appends {"step": …, metrics…}; NaN and infinities are written as strings, so that every JSON reader copes."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        del config
        self._path = run_dir / FILE
        self._abandoned = run_dir / ABANDONED
        torn = _ends_within_a_line(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        if torn:  # by a process that was killed: the next row must not be torn with it
            self._file.write("\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line, flushed at once: a crash loses nothing that was logged."""
        row: dict[str, Any] = {"step": step}
        row |= {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def begin(self, step: int, abandoned: str, metrics: Mapping[str, float]) -> None:
        """Keep the rows up to `step`, move the later ones away, and add that step's own if a crash came before it."""
        kept: list[dict[str, Any]] = []
        later: list[dict[str, Any]] = []
        for row in _rows(self._path):
            (kept if row["step"] <= step and step > 0 else later).append(row)
        if later:
            with self._abandoned.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row | {"lineage": abandoned}) + "\n" for row in later)
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            write_atomically(self._path, "".join(json.dumps(row) + "\n" for row in kept).encode())
            self._file = self._path.open("a", encoding="utf-8")
        if metrics and not any(row["step"] == step and _TRAINED in row for row in kept):
            self.log(step, metrics)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_within_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a file, in their order."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the torn last line of a killed process
        found.append(row)
    return found


def was_validated(run_dir: Path, step: int) -> bool:
    """Whether a run's file has the validation of a step."""
    return any(row["step"] == step and _TRAINED not in row for row in _rows(run_dir / FILE))


def read_metrics(path: Path, up_to_step: int | None = None) -> list[dict[str, Any]]:
    """Rows of a metrics file by step; where a step was logged again after a resume, the newest row wins."""
    rows: dict[tuple[int, bool], dict[str, Any]] = {}
    for row in _rows(path):
        if up_to_step is None or row["step"] <= up_to_step:
            rows[row["step"], _TRAINED in row] = row
    return [rows[key] for key in sorted(rows)]
