from __future__ import annotations

from pathlib import Path

import pytest

from argosy.controller.ledger.lives import FILE, begin_life, next_lineage, read_lives
from argosy.types.errors import StorageError


def test_no_two_starts_of_a_run_share_a_lineage(tmp_path: Path) -> None:
    """The second resume from the same checkpoint, too: the first may have published weights before it died."""
    assert next_lineage(read_lives(tmp_path), "run-a", None) == "l0"
    begin_life(tmp_path, "run-a", "l0", 1, 0)
    assert next_lineage(read_lives(tmp_path), "run-a", "l0") == "l1"
    begin_life(tmp_path, "run-a", "l1", 2, 4)
    assert next_lineage(read_lives(tmp_path), "run-a", "l0") == "l2"
    assert next_lineage(read_lives(tmp_path), "run-b", None) == "l0"
    assert next_lineage([], "run-a", "l6") == "l7"


def test_a_line_that_a_crash_has_torn_costs_only_itself(tmp_path: Path) -> None:
    begin_life(tmp_path, "run-a", "l0", 1, 0)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"run_id": "run-a", "lin')
    begin_life(tmp_path, "run-a", "l1", 2, 0)
    assert [life.lineage for life in read_lives(tmp_path)] == ["l0", "l1"]


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(StorageError, match=FILE):
        begin_life(tmp_path, "run-a", "l0", 1, 0)
