from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from argosy.controller.ledger import Ledger, LedgerCut, LedgerError, load_segment, read_segment, rewind, segment_path
from argosy.controller.ledger.entry import Entry
from argosy.controller.ledger.live import read_live
from argosy.types.errors import CorruptDataError, StorageError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Abstained, Completion, Failed, FinishReason, Scored, ScoreResult, VersionRun

A, B, C = SampleId(0, 0, 0), SampleId(0, 0, 1), SampleId(0, 1, 0)
OLD, NEW = PolicyVersion("l0", 0, "ab" * 32), PolicyVersion("l0", 1, "cd" * 32)


class Clock:
    """Each look is a second later."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def completion(sample: SampleId) -> Completion:
    return Completion(sample, (1, 2), (-0.1, -0.2), (VersionRun(OLD, 1), VersionRun(NEW, 1)), FinishReason.STOP)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def ledger(folder: Path) -> Ledger:
    return Ledger(folder, term=1, clock=Clock())


def run_step(ledger: Ledger) -> None:
    ledger.drawn([(A, 5), (B, 5), (C, 9)])
    ledger.dispatched([A, B, C], "rollout-0")
    ledger.dispatched([A], "rollout-1")
    ledger.completed([completion(A), completion(B), completion(C)])
    ledger.scored([ScoreResult(A, Scored(1.0)), ScoreResult(B, Abstained("empty")), ScoreResult(C, Failed("timeout"))])
    ledger.trained([A], 1)
    ledger.dropped([B, C], "not judged")


def train(ledger: Ledger, sample: SampleId, step: int) -> None:
    ledger.drawn([(sample, 0)])
    ledger.trained([sample], step)


def test_every_sample_is_accounted_for(ledger: Ledger, folder: Path) -> None:
    run_step(ledger)
    assert ledger.counts() == {"trained": 1, "dropped": 2}
    cut = ledger.commit_step(1)
    rows = read_segment(folder, 1)
    assert [(row["sample_id"], row["state"], row["score"], row["verdict"]) for row in rows] == [
        ("e0-p0-k0-a0", "trained", 1.0, None),
        ("e0-p0-k1-a0", "dropped", None, "empty"),
        ("e0-p1-k0-a0", "dropped", None, "timeout: "),
    ]
    assert (rows[0]["first_version"], rows[0]["last_version"]) == (OLD.short, NEW.short)
    assert (rows[0]["prompt_index"], rows[0]["member"], rows[0]["dispatch_count"]) == (5, "rollout-1", 2)
    times = [rows[0][f"{what}_at"] for what in ("drawn", "dispatched", "completed", "scored", "ended")]
    assert times == [1001, 1003, 1004, 1005, 1006]
    assert cut.step == 1
    assert ledger.counts() == {}
    assert read_live(folder) == []


def test_a_lost_sample_stops_the_step(ledger: Ledger, folder: Path) -> None:
    ledger.drawn([(A, 0), (C, 0)])
    ledger.dispatched([A, C], "rollout-0")
    ledger.completed([completion(A)])
    ledger.trained([A], 1)
    with pytest.raises(LedgerError, match=r"neither trained nor dropped, .*: \{'dispatched': 1\} of e0-p1"):
        ledger.commit_step(1)
    assert not segment_path(folder, 1).exists()


def test_what_is_in_flight_is_carried_over(ledger: Ledger, folder: Path) -> None:
    ledger.drawn([(A, 0), (C, 0)])
    ledger.trained([A], 1)
    with pytest.raises(LedgerError, match=r"in flight that are not in the books: e3-p3"):
        ledger.commit_step(1, [C.group, GroupId(3, 3)])
    ledger.commit_step(1, [C.group])
    assert [entry.sample for entry in ledger.in_flight()] == [C]
    assert list(load_segment(folder, 1).open) == [C]
    ledger.trained([C], 2)
    ledger.commit_step(2)
    last = load_segment(folder, 2)
    assert (last.drawn, last.final, list(last.closed), list(last.open)) == (2, 2, [A, C], [])
    assert last.previous == load_segment(folder, 1).sha256


def test_a_sample_is_trained_once_in_the_lineage(ledger: Ledger, folder: Path) -> None:
    train(ledger, A, 1)
    with pytest.raises(LedgerError, match=r"e0-p0-k0-a0 can't become trained: it is trained"):
        ledger.trained([A], 1)
    with pytest.raises(LedgerError, match="drawn a second time"):
        ledger.drawn([(A, 0)])
    cut = ledger.commit_step(1)
    with pytest.raises(LedgerError, match="a step before has finished it"):
        ledger.drawn([(A, 0)])
    with pytest.raises(LedgerError, match="a step before has finished it"):
        ledger.trained([A], 2)
    ledger.close()
    successor = Ledger(folder, term=2)
    successor.resume(cut)
    with pytest.raises(LedgerError, match="a step before has finished it"):
        successor.drawn([(A, 0)])


def test_a_sample_is_drawn_once(ledger: Ledger) -> None:
    ledger.drawn([(A, 0)])
    with pytest.raises(LedgerError, match=r"drawn a second time.*it is drawn"):
        ledger.drawn([(A, 0)])


def test_strangers_and_wrong_orders_are_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="can't become trained: it is not in the books"):
        ledger.trained([A], 1)
    ledger.drawn([(A, 0)])
    ledger.completed([completion(A)])
    with pytest.raises(LedgerError, match="can't become dispatched: it is completed"):
        ledger.dispatched([A], "rollout-0")
    ledger.trained([A], 2)
    with pytest.raises(LedgerError, match="trained in another step than 1"):
        ledger.commit_step(1)
    ledger.commit_step(2)
    with pytest.raises(LedgerError, match="step 2 is committed after step 2"):
        ledger.commit_step(2)


def test_all_that_was_drawn_is_counted(ledger: Ledger) -> None:
    """A defect that loses an entry shows, since what was drawn is counted by itself."""
    ledger.drawn([(A, 0), (C, 0)])
    ledger._open.pop(C)
    ledger.trained([A], 1)
    with pytest.raises(LedgerError, match="2 samples were drawn, but 1 are finished and 0 in flight"):
        ledger.commit_step(1)


def test_a_successor_goes_on_with_what_was_in_flight(ledger: Ledger, folder: Path) -> None:
    ledger.drawn([(A, 0), (B, 0), (C, 7)])
    ledger.trained([A, B], 1)
    ledger.dispatched([C], "rollout-3")
    cut, kept = ledger.commit_step(1, [C.group]), ledger.in_flight()
    ledger.dropped([C], "after the checkpoint: forgotten")
    ledger.close()
    successor = Ledger(folder, term=2)
    successor.resume(cut, kept)
    successor.dispatched([C], "rollout-0")
    successor.trained([C], 2)
    successor.commit_step(2)
    [row] = read_segment(folder, 2)
    assert (row["sample_id"], row["state"], row["dispatch_count"], row["drawn_at"]) == (str(C), "trained", 2, 1001)
    assert load_segment(folder, 2).drawn == 3


def test_what_was_dropped_since_the_cut_goes_on_too(ledger: Ledger, folder: Path) -> None:
    """A checkpoint that is saved between two commits: the data order is past a group that no segment names."""
    ledger.drawn([(A, 0), (C, 7)])
    ledger.trained([A], 1)
    cut = ledger.commit_step(1, [C.group])
    ledger.dropped([C], "dynamic sampling: same metric")
    kept = [Entry.from_row(entry.row()) for entry in ledger.uncommitted()]
    ledger.close()
    successor = Ledger(folder, term=2)
    successor.resume(cut, kept)
    successor.commit_step(2)
    [row] = read_segment(folder, 2)
    assert (row["sample_id"], row["state"], row["reason"]) == (str(C), "dropped", "dynamic sampling: same metric")


def test_another_process_sees_what_is_in_flight(ledger: Ledger, folder: Path) -> None:
    ledger.drawn([(A, 0), (C, 0)])
    ledger.dispatched([A], "rollout-0")
    ledger.trained([A], 1)
    assert [(row["sample_id"], row["state"]) for row in read_live(folder)] == [(str(A), "trained"), (str(C), "drawn")]
    ledger.commit_step(1, [C.group])
    assert [row["sample_id"] for row in read_live(folder)] == [str(C)]


def test_a_damaged_segment_is_refused(ledger: Ledger, folder: Path) -> None:
    run_step(ledger)
    ledger.commit_step(1)
    path = segment_path(folder, 1)
    whole = path.read_bytes()
    for forged in (b'"final": 3', b'"score": 1.0'):
        assert forged in gzip.decompress(whole)
        path.write_bytes(gzip.compress(gzip.decompress(whole).replace(forged, forged[:-1] + b"4")))
        with pytest.raises(CorruptDataError, match="damaged"):
            read_segment(folder, 1)
    for cut_short in (whole[:-9], b"", b"no gzip"):
        path.write_bytes(cut_short)
        with pytest.raises(CorruptDataError, match="damaged"):
            read_segment(folder, 1)


def test_rewind_sets_later_steps_aside(ledger: Ledger, folder: Path) -> None:
    run_step(ledger)
    cut = ledger.commit_step(1)
    ledger.commit_step(2)
    assert rewind(folder, cut, "l0") == 1
    assert not segment_path(folder, 2).exists()
    assert segment_path(folder / "abandoned" / "l0", 2).exists()
    with pytest.raises(CorruptDataError, match="not the one"):
        rewind(folder, LedgerCut(1, "ab" * 32), "l0")
    segment_path(folder, 1).unlink()
    with pytest.raises(CorruptDataError, match="missing"):
        rewind(folder, cut, "l0")


def test_a_full_disk_is_told_as_such(ledger: Ledger) -> None:
    ledger._live.database.execute("PRAGMA max_page_count=6")
    with pytest.raises(StorageError, match=r"no space left while writing .*ledger .*free some"):
        ledger.drawn([(SampleId(0, 0, index), 0) for index in range(2000)])


async def test_a_full_disk_is_told_though_rows_are_written_later(ledger: Ledger) -> None:
    ledger._live.database.execute("PRAGMA max_page_count=6")
    ledger.drawn([(SampleId(0, 0, index), 0) for index in range(900)])
    with pytest.raises(StorageError, match=r"no space left while writing .*ledger"):
        ledger.commit_step(1, [GroupId(0, 0)])


def test_a_step_that_can_not_be_closed_on_disk_is_a_storage_error(ledger: Ledger) -> None:
    run_step(ledger)
    ledger._live.database.execute("PRAGMA query_only=ON")
    with pytest.raises(StorageError, match=r"not allowed to write .*ledger"):
        ledger.commit_step(1)
