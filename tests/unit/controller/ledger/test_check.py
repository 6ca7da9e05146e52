"""`argosy ledger --check` finds whatever was done to the files."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from argosy.controller.files import write_atomically
from argosy.controller.ledger import Ledger, LedgerCut, load_segment, rewind, segment_path, segments
from argosy.controller.ledger.check import check_ledger
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, Scored, ScoreResult, VersionRun

STEPS = 5


def sample(position: int) -> SampleId:
    return SampleId(0, position, 0)


def play(ledger: Ledger, steps: range) -> LedgerCut:
    """Step s trains sample s and drops s + 100, while s + 1 and s + 101 are in flight."""
    cut = LedgerCut(0, "")
    for step in steps:
        ahead = [sample(step + 1), sample(step + 101)]
        ledger.drawn([(one, 0) for one in (sample(step), sample(step + 100), *ahead) if one not in ledger._open])
        versions = (VersionRun(PolicyVersion("l0", step - 1, "ab" * 32), 1),)
        ledger.dispatched([sample(step)], "rollout-0")
        ledger.completed([Completion(sample(step), (1,), (0.0,), versions, FinishReason.STOP)])
        ledger.scored([ScoreResult(sample(step), Scored(0.5))])
        ledger.trained([sample(step)], step)
        ledger.dropped([sample(step + 100)], "dynamic sampling: surplus")
        cut = ledger.commit_step(step, [one.group for one in ahead])
    return cut


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of five steps with a checkpoint of the last."""
    ledger = Ledger(tmp_path / "ledger", term=1)
    cut = play(ledger, range(1, STEPS + 1))
    ledger.close()
    save_cut(tmp_path, cut)
    return tmp_path


def save_cut(run_dir: Path, cut: LedgerCut) -> None:
    folder = run_dir / f"global_step_{cut.step}"
    folder.mkdir()
    (folder / "controller.json").write_text(json.dumps({"ledger": {"step": cut.step, "sha256": cut.sha256}}))


def forge(run_dir: Path, step: int, change: Callable[[list[dict[str, Any]], dict[str, Any]], None]) -> None:
    """Change a segment and all after it so that every checksum fits: only the books can tell."""
    previous = None
    for number in range(step, STEPS + 1):
        path = segment_path(run_dir / "ledger", number)
        *rows, end = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
        del end["sha256"]
        if number == step:
            change(rows, end)
        if previous is not None:
            end["previous"] = previous
        body = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()
        previous = hashlib.sha256(body + json.dumps(end, sort_keys=True).encode()).hexdigest()
        path.write_bytes(gzip.compress(body + json.dumps(end | {"sha256": previous}).encode()))
    shutil.rmtree(run_dir / f"global_step_{STEPS}")


def faults(run_dir: Path) -> str:
    return "\n".join(check_ledger(run_dir).faults)


def test_a_whole_ledger_has_no_fault(run_dir: Path) -> None:
    seen: list[int] = []
    result = check_ledger(run_dir, seen.append)
    assert result.faults == []
    assert (result.segment_count, result.sample_count, result.checkpoint_count, result.in_flight_count) == (5, 10, 1, 2)
    assert seen == [1, 2, 3, 4, 5]


def test_a_changed_byte_shows_once(run_dir: Path) -> None:
    path = segment_path(run_dir / "ledger", 3)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"surplus", b"Surplus")))
    [fault] = check_ledger(run_dir).faults
    assert "step_00000003" in fault
    assert "checksum" in fault


def test_missing_segments_show(run_dir: Path) -> None:
    segment_path(run_dir / "ledger", 3).unlink()
    assert faults(run_dir) == "the segments of steps 3 to 3 are missing"
    segment_path(run_dir / "ledger", 1).unlink()
    assert "the segments before step 2 are missing" in faults(run_dir)
    segment_path(run_dir / "ledger", 5).unlink()
    assert "global_step_5: the ledger's segment of step 5 that it was saved with is missing" in faults(run_dir)


def test_a_segment_of_another_run_in_its_place_shows(run_dir: Path, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "other", term=1, clock=lambda: 5.0)
    play(other, range(1, STEPS + 1))
    shutil.copy(segment_path(tmp_path / "other", 3), segment_path(run_dir / "ledger", 3))
    assert "step 3 does not follow from the segment of step 2" in faults(run_dir)


def trained_twice(rows: list[dict[str, Any]], end: dict[str, Any]) -> None:
    rows.append(rows[0] | {"sample_id": str(sample(2))})
    end["samples"] += 1


def lost(rows: list[dict[str, Any]], end: dict[str, Any]) -> None:
    rows.pop()
    end["final"] -= 1
    end["drawn"] -= 1
    end["closed"] = [[0, [[0, 0]], [1, 4, 101, 103]]]


def newer_than_its_step(rows: list[dict[str, Any]], end: dict[str, Any]) -> None:
    rows[0]["first_version"] = "l0@9#abababab"


def still_open(rows: list[dict[str, Any]], end: dict[str, Any]) -> None:
    rows[0]["state"] = "scored"


def miscounted(rows: list[dict[str, Any]], end: dict[str, Any]) -> None:
    end["drawn"] += 1


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (trained_twice, "step 3: e0-p2-k0-a0 is finished a second time"),
        (lost, "step 3: e0-p103-k0-a0 and 0 more were in flight at the step before and are gone"),
        (newer_than_its_step, "was trained in step 3 with tokens of later weights"),
        (still_open, "step 3: e0-p3-k0-a0 is in a segment and yet only scored"),
        (miscounted, "step 3: 9 samples were drawn, but 6 are finished and 2 in flight"),
    ],
)
def test_books_that_do_not_balance_show(run_dir: Path, change: Any, wanted: str) -> None:
    """Every checksum is right: what is wrong was written so."""
    forge(run_dir, 3, change)
    assert wanted in faults(run_dir)


def test_abandoned_steps_come_back_with_their_checkpoint(run_dir: Path) -> None:
    """Somebody goes back to step 2, does other work, and then takes the checkpoint of step 5 again."""
    folder = run_dir / "ledger"
    newest = json.loads((run_dir / "global_step_5" / "controller.json").read_text())["ledger"]
    back = LedgerCut(2, load_segment(folder, 2).sha256)
    assert rewind(folder, back, "l0") == 3
    ledger = Ledger(folder, term=2, clock=lambda: 7.0)
    ledger.resume(back)
    play(ledger, range(3, 5))
    ledger.close()
    result = check_ledger(run_dir)
    assert (result.faults, result.segment_count, result.abandoned_count) == ([], 4, 3)
    rewind(folder, LedgerCut(5, newest["sha256"]), "l1")
    result = check_ledger(run_dir)
    assert (result.faults, result.segment_count) == ([], 5)
    assert load_segment(folder, 5).sha256 == newest["sha256"]


def test_a_start_that_was_killed_while_steps_came_back_begins_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_dir / "ledger"
    newest = LedgerCut(5, json.loads((run_dir / "global_step_5" / "controller.json").read_text())["ledger"]["sha256"])
    rewind(folder, LedgerCut(2, load_segment(folder, 2).sha256), "l0")

    def write_and_die(path: Path, content: bytes) -> None:
        write_atomically(path, content)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as killed:
            killed.setattr(segments, "write_atomically", write_and_die)
            with pytest.raises(KeyboardInterrupt):
                rewind(folder, newest, "l1")
    rewind(folder, newest, "l1")
    result = check_ledger(run_dir)
    assert (result.faults, result.segment_count) == ([], 5)
