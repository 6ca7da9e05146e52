from __future__ import annotations

from pathlib import Path

import pytest

from argosy.controller.ledger import Ledger, LedgerError, read_segment, rewind, segment_path
from argosy.types.errors import CorruptDataError, StorageError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Abstained, Completion, Failed, FinishReason, Scored, ScoreResult, VersionRun

A, B, C = SampleId(0, 0, 0), SampleId(0, 0, 1), SampleId(0, 1, 0)
VERSION = PolicyVersion("l0", 0, "ab" * 32)


def completion(sample: SampleId) -> Completion:
    return Completion(sample, (1, 2), (-0.1, -0.2), (VersionRun(VERSION, 2),), FinishReason.STOP)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger", term=1)


def run_step(ledger: Ledger) -> None:
    ledger.drawn(1, [(A, 5), (B, 5), (C, 9)])
    ledger.dispatched([A, B, C], "rollout-0")
    ledger.completed([completion(A), completion(B), completion(C)])
    ledger.scored([ScoreResult(A, Scored(1.0)), ScoreResult(B, Abstained("empty")), ScoreResult(C, Failed("timeout"))])
    ledger.trained([A], 1)
    ledger.dropped([B], "abstained: empty")
    ledger.dropped([C], "failed: timeout")


def test_every_sample_is_accounted_for(ledger: Ledger, tmp_path: Path) -> None:
    run_step(ledger)
    assert ledger.counts(1) == {"trained": 1, "dropped": 2}
    cut = ledger.commit_step(1)
    rows = read_segment(tmp_path / "ledger", 1)
    assert [(row["sample_id"], row["state"], row["score"]) for row in rows] == [
        ("e0-p0-k0-a0", "trained", 1.0),
        ("e0-p0-k1-a0", "dropped", None),
        ("e0-p1-k0-a0", "dropped", None),
    ]
    assert rows[0]["first_version"] == VERSION.short
    assert rows[0]["prompt_index"] == 5
    assert cut.step == 1
    assert ledger.counts(1) == {}


def test_a_lost_sample_stops_the_step(ledger: Ledger) -> None:
    ledger.drawn(1, [(A, 0), (B, 0)])
    ledger.dispatched([A, B], "rollout-0")
    ledger.completed([completion(A)])
    ledger.trained([A], 1)
    with pytest.raises(LedgerError, match=r"neither trained nor dropped: \{'dispatched': 1\}"):
        ledger.commit_step(1)


def test_a_sample_enters_once(ledger: Ledger) -> None:
    ledger.drawn(1, [(A, 0)])
    with pytest.raises(LedgerError, match="already in the books"):
        ledger.drawn(2, [(A, 0)])


def test_a_stranger_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="not in the books"):
        ledger.trained([A], 1)


def test_a_damaged_segment_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    run_step(ledger)
    ledger.commit_step(1)
    path = segment_path(tmp_path / "ledger", 1)
    path.write_bytes(path.read_bytes().replace(b"1.0", b"0.0"))
    with pytest.raises(CorruptDataError, match="damaged"):
        read_segment(tmp_path / "ledger", 1)


def test_rewind_sets_later_steps_aside(ledger: Ledger, tmp_path: Path) -> None:
    run_step(ledger)
    cut = ledger.commit_step(1)
    ledger.drawn(2, [])
    ledger.commit_step(2)
    assert rewind(tmp_path / "ledger", cut, "l0") == 1
    assert not segment_path(tmp_path / "ledger", 2).exists()
    assert segment_path(tmp_path / "ledger" / "abandoned" / "l0", 2).exists()
    ledger.drawn(2, [])
    other = ledger.commit_step(2)
    segment_path(tmp_path / "ledger", 1).unlink()
    with pytest.raises(CorruptDataError, match="missing"):
        rewind(tmp_path / "ledger", cut, "l0")
    assert other.step == 2


def test_a_full_disk_is_told_as_such(ledger: Ledger) -> None:
    ledger._database.execute("PRAGMA max_page_count=6")
    with pytest.raises(StorageError, match=r"no space left while writing .*ledger .*free some"):
        ledger.drawn(1, [(SampleId(0, 0, index), 0) for index in range(2000)])


def test_a_step_that_can_not_be_closed_on_disk_is_a_storage_error(ledger: Ledger) -> None:
    run_step(ledger)
    ledger._database.execute("PRAGMA query_only=ON")
    with pytest.raises(StorageError, match=r"not allowed to write .*ledger"):
        ledger.commit_step(1)
