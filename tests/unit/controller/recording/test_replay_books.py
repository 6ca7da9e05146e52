"""A replay from the checkpoint of an asynchronous run, which had groups under way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from argosy.controller.ledger import Entry, Ledger, LedgerCut
from argosy.controller.producing import Produced
from argosy.controller.recording.replay import ReplayProducer
from argosy.controller.recording.store import Record
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import ScoreResult
from unit.controller.recording.test_store import made, written


def interrupted(folder: Path, state: str) -> tuple[LedgerCut, list[dict[str, Any]]]:
    """Step 1 is done. Of group 2, which step 2 trains, k = 0, 1 are as far as `state` and k = 7 is too many; group 9
    is in no step of the record."""
    ledger, record = Ledger(folder, 1), made(2).record
    samples = sorted(record.completions)
    ledger.drawn([(sample, 0) for sample in (*samples, SampleId(0, 2, 7), SampleId(0, 9, 0))])
    if state != "drawn":
        ledger.dispatched(samples, "rollout-0")
    if state in ("completed", "scored"):
        ledger.completed([record.completions[sample] for sample in samples])
    if state == "scored":
        ledger.scored([ScoreResult(sample, record.outcomes[sample]) for sample in samples])
    cut = ledger.commit_step(1, {GroupId(0, 2), GroupId(0, 9)})
    rows = [entry.row() for entry in ledger.uncommitted()]
    ledger.close()
    return cut, rows


@pytest.mark.parametrize("state", ["drawn", "dispatched", "completed", "scored"])
async def test_open_samples_go_on_in_the_books(tmp_path: Path, state: str) -> None:
    cut, rows = interrupted(tmp_path / "ledger", state)
    ledger = Ledger(tmp_path / "ledger", 2)
    ledger.resume(cut, [Entry.from_row(row) for row in rows])
    record = Record(written(tmp_path / "record", 2, 3))
    producer = ReplayProducer(cast(Any, SimpleNamespace(ledger=ledger)), record)
    producer.restore({"finished": []})
    assert producer.open_groups() == {GroupId(0, 2), GroupId(0, 9)}
    for step in (2, 3):
        produced = await producer.produce(step)
        assert isinstance(produced, Produced)
        ledger.trained(produced.record.completions, step)
        ledger.commit_step(step, producer.open_groups())
    assert [str(entry.sample) for entry in ledger.in_flight()] == ["e0-p9-k0-a0"]
    ledger.close()
