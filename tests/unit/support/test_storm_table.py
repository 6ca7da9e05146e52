"""Several storms become one table, and a schedule has every kind once before any comes again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support.storm.faults import DISK_FULL, FAULTS, schedule
from support.storm.table import faults_in, line, table

TRAINER = "the trainer is killed"


def test_logs_of_several_storms_become_one_table(tmp_path: Path) -> None:
    for number, found in enumerate([[(TRAINER, 4.0), (DISK_FULL, 9.0)], [(TRAINER, 6.0)]]):
        (tmp_path / f"{number}.log").write_text(f"1 passed\n{line(found, 7, 33.0)}\nand more\n")
    quiet = faults_in([tmp_path / "0.log", tmp_path / "1.log"])
    shown = table(quiet, faults_in([tmp_path / "1.log"]))
    row = next(one for one in shown.splitlines() if one.startswith(f"| {TRAINER} |"))
    assert row.endswith("< 30 s | 2 | 5.0 s | 6.0 s | 1 | 6.0 s | 6.0 s |")
    assert f"| {DISK_FULL} |" in shown
    assert "| 1 | 9.0 s | 9.0 s | 0 | – | – |" in shown
    assert len({one.count("|") for one in shown.splitlines()}) == 1


def test_a_schedule_has_each_kind_once_before_any_comes_again() -> None:
    drawn = [fault.name for fault in schedule(3, len(FAULTS))[0]]
    assert sorted(drawn) == sorted(fault.name for fault in FAULTS)
    whole = sum(fault.weight for fault in FAULTS)
    assert Counter(fault.name for fault in schedule(3, whole)[0]) == {fault.name: fault.weight for fault in FAULTS}
    assert schedule(3, 9)[0] == schedule(3, 9)[0] != schedule(4, 9)[0]


def test_a_schedule_of_some_kinds() -> None:
    assert {fault.name for fault in schedule(3, 40, without=[DISK_FULL])[0]} == {
        fault.name for fault in FAULTS if fault.name != DISK_FULL
    }
    assert {fault.name for fault in schedule(3, 4, only="trainer")[0]} == {TRAINER}
    with pytest.raises(AssertionError, match="no fault has 'volcano'"):
        schedule(3, 4, only="volcano")
