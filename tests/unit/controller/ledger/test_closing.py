"""A step is closed in a thread: what the books say in between, and when it can't be written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.controller.ledger import Ledger, LedgerError, load_segment, read_segment, segment_path
from argosy.controller.ledger import closing as closing_module
from argosy.controller.ledger.live import ROWS_AT_ONCE, read_live
from argosy.controller.ledger.segments import write_segment
from argosy.types.errors import StorageError
from argosy.types.ids import SampleId

A, B, C = SampleId(0, 0, 0), SampleId(0, 1, 0), SampleId(0, 2, 0)
HANG_S = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def ledger(folder: Path) -> Iterator[Ledger]:
    books = Ledger(folder, term=1)
    yield books
    books.close()


def states(folder: Path, step: int) -> list[tuple[str, str]]:
    return [(row["sample_id"], row["state"]) for row in read_segment(folder, step)]


async def test_the_event_loop_goes_on_and_what_happens_meanwhile_is_of_the_next_step(
    ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow_disk(*args: Any) -> str:
        assert go_on.wait(HANG_S)
        return write_segment(*args)

    monkeypatch.setattr(closing_module, "write_segment", slow_disk)
    ledger.drawn([(A, 0), (B, 1)])
    ledger.trained([A], 1)
    commit = asyncio.ensure_future(ledger.begin_commit(1, [B.group]))
    await asyncio.sleep(0)
    ledger.drawn([(C, 2)])
    ledger.dropped([B], "meanwhile")
    with pytest.raises(LedgerError, match=r"drawn a second time; it is already in the books \(it is trained\)"):
        ledger.drawn([(A, 0)])
    assert [entry.sample for entry in ledger.uncommitted()] == [B, C], "what a checkpoint keeps beside the new cut"
    go_on.set()
    assert (await asyncio.wait_for(commit, HANG_S)).step == 1
    assert states(folder, 1) == [(str(A), "trained")]
    first = load_segment(folder, 1)
    assert (first.drawn, first.final, list(first.open)) == (2, 1, [B])
    await asyncio.wait_for(ledger.begin_commit(2, [C.group]), HANG_S)
    assert states(folder, 2) == [(str(B), "dropped")]
    second = load_segment(folder, 2)
    assert (second.drawn, second.final, list(second.open)) == (3, 2, [C])
    with pytest.raises(LedgerError, match="a step before has finished it"):
        ledger.drawn([(A, 0)])


async def test_what_can_not_be_written_stays_in_the_books(ledger: Ledger, folder: Path) -> None:
    ledger.drawn([(A, 0), (B, 1)])
    ledger.trained([A], 1)
    segment_path(folder, 1).mkdir()
    commit = asyncio.ensure_future(ledger.begin_commit(1, [B.group]))
    await asyncio.sleep(0)
    ledger.trained([B], 1)
    with pytest.raises(StorageError):
        await asyncio.wait_for(commit, HANG_S)
    assert ledger.counts() == {"trained": 2}
    segment_path(folder, 1).rmdir()
    assert ledger.commit_step(1).step == 1
    assert states(folder, 1) == [(str(A), "trained"), (str(B), "trained")]
    assert read_live(folder) == []


async def test_books_that_do_not_balance_stay_as_they_were(ledger: Ledger, folder: Path) -> None:
    ledger.drawn([(A, 0), (B, 1)])
    ledger.trained([A], 1)
    with pytest.raises(LedgerError, match=r"neither trained nor dropped.*e0-p1"):
        await ledger.begin_commit(1)
    assert not segment_path(folder, 1).exists()
    assert ledger.counts() == {"trained": 1, "drawn": 1}
    await ledger.begin_commit(1, [B.group])
    with pytest.raises(LedgerError, match="step 1 is committed after step 1"):
        await ledger.begin_commit(1, [B.group])


async def test_one_step_is_closed_at_a_time(ledger: Ledger) -> None:
    ledger.drawn([(A, 0)])
    ledger.trained([A], 1)
    first = ledger.begin_commit(1)
    with pytest.raises(LedgerError, match="step 2 is committed while the one before still is"):
        ledger.begin_commit(2)
    assert (await first).step == 1


async def test_the_event_loop_goes_on_while_the_live_table_is_written(ledger: Ledger, folder: Path) -> None:
    """More rows than one write takes: they wait for the disk, and the books don't."""
    go_on = threading.Event()
    ledger._thread.submit(go_on.wait, HANG_S)
    count = 2 * ROWS_AT_ONCE + 5
    ledger.drawn([(SampleId(0, 0, k), 0) for k in range(count)])
    ledger.dispatched([SampleId(0, 0, 7)], "rollout-0")
    await asyncio.sleep(0.5)  # the first write is under way, or will be: neither may matter
    assert read_live(folder) == []
    go_on.set()
    async with asyncio.timeout(HANG_S):
        while len(rows := read_live(folder)) < count:  # noqa: ASYNC110 - SQLite has no event
            await asyncio.sleep(0.02)
    assert {row["state"] for row in rows} == {"drawn", "dispatched"}


async def test_a_full_disk_is_told_by_whatever_comes_next(ledger: Ledger) -> None:
    ledger._live.database.execute("PRAGMA max_page_count=6")
    ledger.drawn([(SampleId(0, 0, k), 0) for k in range(900)])
    async with asyncio.timeout(HANG_S):
        while ledger._live._failure is None:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)
    with pytest.raises(StorageError, match=r"no space left while writing .*ledger"):
        ledger.drawn([(SampleId(0, 1, 0), 0)])
    with pytest.raises(StorageError, match=r"no space left while writing .*ledger"):
        await ledger.begin_commit(1, None)
