"""Records on disk: whole or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from argosy.controller.fence import TermFence
from argosy.controller.producing import StepRecord
from argosy.controller.recording.store import HEAD, INDEX, Record, RecordedStep, RecordHead
from argosy.controller.recording.writer import RecordWriter
from argosy.types.errors import ConfigError, CorruptDataError, FencedError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, Leader, Prompt, Scored, VersionRun

HEAD_ = RecordHead("run-1", "model", "digest", n=2, train_batch_size=1)
VERSION = PolicyVersion("l0", 0, "00" * 32)


def made(step: int, score: float = 0.5) -> RecordedStep:
    rows = {
        sample: Completion(sample, (1, 2, step), (-0.5,) * 3, (VersionRun(VERSION, 3),), FinishReason.STOP, "text")
        for sample in (SampleId(0, step, k) for k in range(2))
    }
    outcomes = {sample: Scored(score) for sample in rows}
    record = StepRecord(step, [Prompt(GroupId(0, step), (9,), "toy", "")], rows, outcomes, VERSION)
    return RecordedStep(record, {"rollout/x": 1.0}, {"position": step}, {"scores": {}})


def written(folder: Path, *steps: int) -> Path:
    writer = RecordWriter(folder, HEAD_)
    for step in steps:
        writer.write(made(step))
    return folder


def test_a_step_comes_back_with_what_a_checkpoint_needs(tmp_path: Path) -> None:
    record = Record(written(tmp_path / "record", 1, 2))
    assert record.steps == [1, 2]
    found = record.read(2)
    assert found == made(2)
    assert record.entries[2].mean_score == 0.5
    assert (record.entries[2].sample_count, record.entries[2].token_count) == (2, 6)
    assert Record(tmp_path).steps == [1, 2], "the run's folder will do"


def test_a_folder_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no record in"):
        Record(tmp_path)


@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, how: str) -> None:
    folder = written(tmp_path, 1, 2)
    victim = folder / "step-00000002.parquet"
    data = bytearray(victim.read_bytes())
    if how == "gone":
        victim.unlink()
    else:
        data[len(data) // 2] ^= 1
        victim.write_bytes(data[:-1] if how == "cut" else data)
    record = Record(folder)
    record.read(1)
    said = {"cut": "has .* bytes instead of", "flipped": "does not match its checksum", "gone": "is missing"}[how]
    with pytest.raises(CorruptDataError, match=f"step-00000002.parquet {said}"):
        record.read(2)


def test_a_whole_record_is_checked_at_once(tmp_path: Path) -> None:
    folder = written(tmp_path, 1, 2, 3, 4)
    Record(folder).check_all(range(1, 5))
    (folder / "step-00000002.parquet").unlink()
    third = folder / "step-00000003.parquet"
    third.write_bytes(third.read_bytes()[:-3])
    fourth = bytearray((folder / "step-00000004.parquet").read_bytes())
    fourth[len(fourth) // 2] ^= 1
    (folder / "step-00000004.parquet").write_bytes(fourth)
    with pytest.raises(CorruptDataError) as found:
        Record(folder).check_all(range(1, 5))
    two, three, four = str(found.value).partition(" is damaged: ")[2].split("; ")
    assert two == "step 2: step-00000002.parquet is missing"
    assert three.startswith("step 3: step-00000003.parquet has ")
    assert four == "step 4: step-00000004.parquet does not match its checksum"
    Record(folder).check_all([1, 4], digest_bytes=10)  # too much to read all of it before a run starts
    with pytest.raises(ConfigError, match="has no step 5"):
        Record(folder).check_all(range(4, 6))


def test_a_step_that_was_not_entered_does_not_exist(tmp_path: Path) -> None:
    """A run is killed between the file and its line, or in the middle of the line."""
    folder = written(tmp_path, 1, 2)
    lines = (folder / INDEX).read_bytes().splitlines(keepends=True)
    (folder / INDEX).write_bytes(lines[0] + lines[1][:-9])
    assert Record(folder).steps == [1]
    (folder / INDEX).write_bytes(b"{}\n" + lines[1])
    with pytest.raises(CorruptDataError, match="line 1 of"):
        Record(folder)


def test_an_index_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, 1)
    entry = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**entry, "file": "../step-00000001.parquet"}) + "\n")
    with pytest.raises(CorruptDataError, match="elsewhere"):
        Record(folder)


def test_a_resumed_run_drops_what_it_does_again(tmp_path: Path) -> None:
    folder = written(tmp_path, 1, 2, 3)
    writer = RecordWriter(folder, HEAD_, after_step=1)
    assert Record(folder).steps == [1]
    assert not (folder / "step-00000003.parquet").exists(), "a shorter second life must not end with the first one's"
    writer.write(made(2, score=1.0))
    assert Record(folder).entries[2].mean_score == 1.0
    assert writer.size_bytes == sum(entry.size_bytes for entry in Record(folder).entries.values())


def test_f8_an_earlier_leader_adds_nothing_to_the_record_of_the_next(tmp_path: Path) -> None:
    old = TermFence(tmp_path, Leader("run-1", 1), "a")
    old.take()
    writer = RecordWriter(tmp_path / "record", HEAD_, fence=old)
    for step in (1, 2):
        writer.write(made(step))
    new = TermFence(tmp_path, Leader("run-1", 2), "b")
    new.take()
    with pytest.raises(FencedError):
        RecordWriter(tmp_path / "record", HEAD_, fence=old)
    assert Record(tmp_path).steps == [1, 2], "it drops nothing either"
    taken_over = RecordWriter(tmp_path / "record", HEAD_, after_step=1, fence=new)
    taken_over.write(made(2, score=1.0))
    for step in (2, 3):
        with pytest.raises(FencedError):
            writer.write(made(step))
    record = Record(tmp_path)
    record.check_all([1, 2])
    assert (record.steps, record.entries[2].mean_score) == ([1, 2], 1.0)
    assert sorted(path.name for path in record.folder.glob("step-*")) == [
        "step-00000001.parquet",
        "step-00000002.parquet",
    ]


def test_records_are_not_mixed(tmp_path: Path) -> None:
    folder = written(tmp_path, 1)
    other = replace(HEAD_, run_id="run-2")
    with pytest.raises(ConfigError, match="already holds a record, of run run-1"):
        RecordWriter(folder, other)
    with pytest.raises(ConfigError, match="holds the record of run run-1, and this is run-2 from step 1 on"):
        RecordWriter(folder, other, after_step=1)
    assert Record(folder).steps == [1]


def test_a_record_of_a_later_format(tmp_path: Path) -> None:
    folder = written(tmp_path, 1)
    head = json.loads((folder / HEAD).read_text())
    (folder / HEAD).write_text(json.dumps(head | {"format": 2}))
    with pytest.raises(ConfigError, match="has format 2"):
        Record(folder)
