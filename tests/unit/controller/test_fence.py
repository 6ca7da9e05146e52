"""The fence of a run folder: whatever a leader of an older term had begun is never completed (case F8)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from argosy.controller import fence as fence_module
from argosy.controller.fence import LEADER_FILE, LOCK_FILE, TermFence, folder_leader
from argosy.controller.ledger import Ledger
from argosy.controller.ledger.lives import begin_life, read_lives
from argosy.controller.ledger.segments import load_segment, segment_path
from argosy.controller.observer import RunObserver
from argosy.controller.recovery import CheckpointStore
from argosy.types.errors import FencedError, StorageError
from argosy.types.ids import SampleId
from argosy.types.records import Leader


def leader(folder: Path, term: int, run_id: str = "run") -> TermFence:
    """The fence of a leader that has just come."""
    fence = TermFence(folder, Leader(run_id, term), f"controller-{term}")
    fence.take()
    return fence


def half_saved(store: CheckpointStore, step: int, content: str) -> Path:
    working = store.begin(step)
    (working / "actor" / "model").write_text(content)
    return working


def test_a_term_is_taken_once_and_only_upwards(tmp_path: Path) -> None:
    leader(tmp_path, 3)
    for term in (2, 3):
        with pytest.raises(FencedError, match="controller-3 leads run 'run' there with term 3"):
            TermFence(tmp_path, Leader("run", term), "another").take()
    found = folder_leader(tmp_path)
    assert found is not None
    assert (found.leader, found.candidate) == (Leader("run", 3), "controller-3")
    newest = leader(tmp_path, 4)
    (tmp_path / LEADER_FILE).unlink()
    with pytest.raises(FencedError, match="is gone"), newest.writing():
        pass


def test_f8_a_checkpoint_that_an_old_leader_had_begun_is_never_completed(tmp_path: Path) -> None:
    old, new = CheckpointStore(tmp_path, 1), CheckpointStore(tmp_path, 1)
    old.fence = leader(tmp_path, 1)
    old.commit(4, "run", half_saved(old, 4, "four"), {"term": 1})
    working = half_saved(old, 5, "old")  # here it is stopped
    new.fence = leader(tmp_path, 2)
    assert not working.exists(), "it can't be completed by a rename that comes late either"
    newest = new.latest()
    assert newest is not None
    assert newest.step == 4
    new.commit(5, "run", half_saved(new, 5, "new"), {"term": 2})
    with pytest.raises(FencedError, match="controller-2 leads"):
        old.commit(5, "run", working, {"term": 1})
    with pytest.raises(FencedError):
        old.begin(6)
    newest = new.latest()
    assert newest is not None
    assert (newest.step, (newest.actor / "model").read_text(), newest.state()) == (5, "new", {"term": 2})
    assert sorted(path.name for path in tmp_path.glob("*global_step*")) == ["global_step_5"]


def test_f8_an_old_leader_stopped_right_before_the_rename_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is written, the folder complete: only the rename is missing."""
    old, new = CheckpointStore(tmp_path, 1), CheckpointStore(tmp_path, 1)
    old.fence = leader(tmp_path, 1)
    working = half_saved(old, 5, "old")
    put = CheckpointStore._put_in_place

    def takeover(*arguments: Any) -> None:
        raise AssertionError("the old leader got as far as the rename")

    class Stopped:
        """What `writing` of the old leader is: it stands still before it."""

        tag = ".term1"

        @contextmanager
        def writing(self) -> Iterator[None]:
            new.fence = leader(tmp_path, 2) if not isinstance(new.fence, TermFence) else new.fence
            with old_fence.writing():
                yield

    old_fence, old.fence = old.fence, Stopped()
    monkeypatch.setattr(CheckpointStore, "_put_in_place", takeover)
    with pytest.raises(FencedError):
        old.commit(5, "run", working, {})
    monkeypatch.setattr(CheckpointStore, "_put_in_place", put)
    assert new.latest() is None
    assert new.commit(5, "run", half_saved(new, 5, "new"), {}).step == 5


def test_f8_a_segment_of_an_old_term_is_not_the_runs(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    books = {}
    for term in (1, 2):
        books[term] = Ledger(folder, term, leader(tmp_path, term))
        books[term].drawn([(SampleId(0, 0, 0), 0)])
        books[term].dropped([SampleId(0, 0, 0)], f"term {term}")
    cut = books[2].commit_step(1)
    with pytest.raises(FencedError):
        books[1].commit_step(1)
    assert books[1].counts() == {"dropped": 1}, "the books stay as they were"
    segment = load_segment(folder, 1)
    assert (segment.sha256, segment.rows[0]["reason"]) == (cut.sha256, "term 2")
    assert [path.name for path in folder.glob("step_*")] == [segment_path(folder, 1).name], "nothing half is left"
    for one in books.values():
        one.close()


def test_f8_an_old_leader_enters_no_life_and_logs_no_step(tmp_path: Path) -> None:
    old = leader(tmp_path, 1)
    begin_life(tmp_path, "run", "l0", 1, 0, fence=old)
    leader(tmp_path, 2)
    with pytest.raises(FencedError):
        begin_life(tmp_path, "run", "l1", 1, 0, fence=old)
    assert [life.lineage for life in read_lives(tmp_path)] == ["l0"]
    logged: list[int] = []

    class Logger:
        def log(self, step: int, metrics: object) -> None:
            logged.append(step)

        def begin(self, step: int, abandoned: str, metrics: object) -> None:
            logged.append(step)

        def close(self) -> None:
            return

    nothing: Any = None
    observer = RunObserver(nothing, tmp_path, nothing, [Logger()], old)
    with pytest.raises(FencedError):
        observer.begin(0, "l0", {})
    with pytest.raises(FencedError):
        observer.step_done(1, {}, nothing)
    assert logged == []


def test_a_lock_whose_holder_stands_still_does_not_stop_a_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_module, "PATIENCE_S", 0.1)
    old = leader(tmp_path, 1)
    held = os.open(tmp_path / LOCK_FILE, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(StorageError, match="another controller is writing"), old.writing():
        pass
    new = leader(tmp_path, 2)
    with new.writing():
        pass
    with pytest.raises(FencedError), old.writing():
        pass
    os.close(held)


def test_a_damaged_leader_file_is_told(tmp_path: Path) -> None:
    (tmp_path / LEADER_FILE).write_text("{")
    with pytest.raises(StorageError, match=r"leader\.json is damaged"):
        leader(tmp_path, 1)
