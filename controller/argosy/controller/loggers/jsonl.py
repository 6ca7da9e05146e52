"""`metrics.jsonl`: one line per step, the record that everything else can be rebuilt from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.config import Config


class JsonlLogger:
    """Appends {"step": …, metrics…}; NaN and infinities are written as strings, so that every JSON reader copes."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        del config
        path = run_dir / "metrics.jsonl"
        torn = _ends_within_a_line(path)
        self._file = path.open("a", encoding="utf-8")
        if torn:  # by a process that was killed: the next row must not be torn with it
            self._file.write("\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line, flushed at once: a crash loses nothing that was logged."""
        row: dict[str, Any] = {"step": step}
        row |= {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_within_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read_metrics(path: Path, up_to_step: int | None = None) -> list[dict[str, Any]]:
    """Rows of a metrics file by step; where a step was logged again after a resume, the newest row wins."""
    rows: dict[tuple[int, bool], dict[str, Any]] = {}
    if not path.exists():
        return []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the torn last line of a killed process
        if up_to_step is None or row["step"] <= up_to_step:
            rows[row["step"], "training/global_step" in row] = row
    return [rows[key] for key in sorted(rows)]
