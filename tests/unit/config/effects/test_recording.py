"""`argosy.record.*`, `argosy.replay.*`, `argosy.rollout_only`."""

from __future__ import annotations

from pathlib import Path

import pytest

from argosy.config import Config, load
from argosy.controller.launch.plan import services_of
from argosy.controller.recording.store import Record
from argosy.types.errors import ConfigError
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import problems

Patch = pytest.MonkeyPatch


async def test_enable(job: Config, monkeypatch: Patch) -> None:
    await run_recorded(job, monkeypatch)
    with pytest.raises(ConfigError, match="there is no record in"):
        Record(job.run_folder)
    folder = f"{job.run_folder}-2"
    changed = job.with_values({"argosy.record.enable": True, "trainer.default_local_dir": folder})
    recorded = await run_recorded(changed, monkeypatch)
    record = Record(Path(folder))
    assert record.steps == [1, 2]
    trained = record.read(2).record
    assert sorted(trained.completions) == recorded.batches[1].sample_ids
    assert len(trained.outcomes) == len(trained.completions) == 8


async def test_path(job: Config, monkeypatch: Patch, tmp_path: Path) -> None:
    changed = job.with_values({"argosy.record.enable": True, "argosy.record.path": str(tmp_path / "elsewhere")})
    await run_recorded(changed, monkeypatch)
    assert Record(tmp_path / "elsewhere").steps == [1, 2]
    assert not (job.run_folder / "record").exists()


async def test_max_gb(job: Config, monkeypatch: Patch) -> None:
    """The run goes on without its record."""
    changed = job.with_values({"argosy.record.enable": True, "argosy.record.max_gb": 1e-9, "trainer.total_epochs": 4})
    recorded = await run_recorded(changed, monkeypatch)
    assert len(recorded.batches) == 8
    assert 1 <= len(Record(job.run_folder).steps) < 8
    assert "argosy.record.max_gb: got -1" in problems(job.with_values({"argosy.record.max_gb": -1.0}))


async def test_replay_path(job: Config, monkeypatch: Patch) -> None:
    first = await run_recorded(job.with_values({"argosy.record.enable": True}), monkeypatch)
    changed = job.with_values({
        "argosy.replay.path": str(job.run_folder), "trainer.default_local_dir": f"{job.run_folder}-2",
        "data.train_files": [], "data.val_files": [],
    })  # fmt: skip
    replayed = await run_recorded(changed, monkeypatch)
    assert replayed.generated == []
    assert [batch.table for batch in replayed.batches] == [batch.table for batch in first.batches]
    assert services_of(changed) == {"trainer": 1}
    refused = changed.with_values({"argosy.record.enable": True, "argosy.rollout_only": True, "trainer.val_only": True})
    assert all(key in problems(refused) for key in ("argosy.record.enable", "argosy.rollout_only", "trainer.val_only"))


def test_a_replay_says_that_nothing_is_validated_only_where_that_was_asked_for() -> None:
    words = ["argosy.replay.path=somewhere", "data.val_files=[val.jsonl]"]
    for test_freq, wanted in ((-1, []), (2, ["trainer.test_freq=2 has no effect"])):
        warned: list[str] = []
        load([*words, f"trainer.test_freq={test_freq}"], on_warning=warned.append)
        assert [line.partition(":")[0] for line in warned] == wanted


def test_rollout_only(job: Config) -> None:
    assert services_of(job.with_values({"argosy.rollout_only": True})) == {"reward": 1, "rollout": 1}
    assert services_of(job)["trainer"] == 1
