"""The benchmark of weight transports: every way is measured, first and later, and held against its reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "weightsync.py"
QUICK = ["--size-mb", "2", "--receivers", "1", "--repeat", "1", "--transports", "shared_memory", "stream", "--json"]
BESIDE = {"memcpy": None, "checksums": None, "raw gloo": None, "shared_memory": "memcpy", "stream": "memcpy"}


def test_first_and_later_syncs_of_each_way_are_told() -> None:
    command = [sys.executable, str(SCRIPT), *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    assert {row["transport"]: row.get("of") for row in rows} == BESIDE
    assert all(row["gb_per_s"] > 0 and row["first_s"] > 0 for row in rows)
    assert all(row["ratio"] > 0 for row in rows if "of" in row)
