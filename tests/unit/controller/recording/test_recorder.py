"""Steps are written beside the loop, in order and bounded."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from argosy.controller.recording.recorder import MOST_PENDING, Recorder
from argosy.controller.recording.store import Record, RecordedStep, StepEntry
from argosy.controller.recording.writer import RecordWriter
from argosy.types.errors import StorageError
from unit.controller.recording.test_store import HEAD_, made


class SlowWriter(RecordWriter):
    """Writes when it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, HEAD_)
        self.may = threading.Event()

    def write(self, made: RecordedStep) -> StepEntry:
        assert self.may.wait(60)
        return super().write(made)


class FullDisk(RecordWriter):
    def write(self, made: RecordedStep) -> StepEntry:
        raise StorageError("the disk is full")


async def test_the_loop_waits_only_for_a_disk_that_is_behind(tmp_path: Path) -> None:
    writer = SlowWriter(tmp_path)
    async with Recorder(writer) as recorder:
        for step in range(1, MOST_PENDING + 1):
            await recorder.add(made(step))
        late = asyncio.create_task(recorder.add(made(MOST_PENDING + 1)))
        await asyncio.sleep(0.05)
        assert not late.done(), "no more steps are held in memory than that"
        writer.may.set()
        await late
    assert Record(tmp_path).steps == [1, 2, 3], "all are there when it is closed"


async def test_a_checkpoint_waits_until_its_step_is_recorded(tmp_path: Path) -> None:
    """Else a kill between the two leaves a hole: the run goes on after the step, and the record has it not."""
    writer = SlowWriter(tmp_path)
    async with Recorder(writer) as recorder:
        await recorder.add(made(1))
        settled = asyncio.create_task(recorder.settled())
        await asyncio.sleep(0.05)
        assert not settled.done()
        writer.may.set()
        await settled
        assert Record(tmp_path).steps == [1]


def test_a_record_that_lacks_steps_before_a_start_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    RecordWriter(tmp_path, HEAD_).write(made(1))
    with caplog.at_level(logging.WARNING):
        RecordWriter(tmp_path, HEAD_, after_step=1)
        assert not caplog.messages
        RecordWriter(tmp_path, HEAD_, after_step=3)
    assert "ends at step 1, and this start goes on after step 3" in caplog.text


async def test_a_full_disk_ends_the_record_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with Recorder(FullDisk(tmp_path, HEAD_)) as recorder:
            for step in range(1, 6):
                await recorder.add(made(step))
    assert "the disk is full" in recorder.stopped
    assert sum("ends here, the run goes on" in line for line in caplog.messages) == 1


async def test_rollouts_alone_fail_with_their_record(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the disk is full"):
        async with Recorder(FullDisk(tmp_path, HEAD_), must=True) as recorder:
            await recorder.add(made(1))


async def test_a_record_ends_at_its_limit(tmp_path: Path) -> None:
    async with Recorder(RecordWriter(tmp_path, HEAD_), max_bytes=1) as recorder:
        await recorder.add(made(1))
        await recorder.settled()
        await recorder.add(made(2))
    assert Record(tmp_path).steps == [1]
    assert "argosy.record.max_gb" in recorder.stopped


class Unfit(RecordWriter):
    def write(self, made: RecordedStep) -> StepEntry:
        "\ud800".encode()
        raise AssertionError


async def test_a_step_that_no_row_can_hold_ends_the_record_and_not_the_run(tmp_path: Path) -> None:
    """Half a character of a custom loop's messages, say."""
    async with Recorder(Unfit(tmp_path, HEAD_)) as recorder:
        await recorder.add(made(1))
    assert "surrogates not allowed" in recorder.stopped
    with pytest.raises(StorageError, match="surrogates not allowed"):
        async with Recorder(Unfit(tmp_path, HEAD_), must=True) as recorder:
            await recorder.add(made(1))
