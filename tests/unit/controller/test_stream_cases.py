"""Cases C9, C10, D8, D14 and H5 on groups that stream in: what the loop asks for, trains, refuses, and goes on from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.ledger import read_segment
from argosy.controller.recovery import read_checkpoint
from argosy.controller.stages.filtering import NoFullBatchError
from argosy.types.errors import ConfigError, CorruptDataError, InvalidInputError
from argosy.types.records import Scored
from support.toy import write_rows
from unit.config.effects.recorded import Recorded, run_recorded

STREAM = {"argosy.max_staleness": 1}


def streaming(job: Config, **values: Any) -> Config:
    return job.with_values(STREAM | {name.replace("__", "."): value for name, value in values.items()})


def rows_of(recorded: Recorded | Path, *steps: int) -> list[dict[str, Any]]:
    folder = recorded if isinstance(recorded, Path) else recorded.folder
    return [row for step in steps for row in read_segment(folder / "ledger", step)]


# -- C9: what can't be divided ---------------------------------------------------------------------------------------


async def test_c9_a_rest_of_the_data_is_left_to_the_next_data_epoch(
    small_job: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 prompts of 3 samples in steps of 4: 2 are left over in each data epoch. Seven held-out prompts are asked once,
    in batches of 4 and 3. Nobody is asked twice to fill anything up."""
    write_rows(tmp_path / "train.jsonl", [f"question {i}" for i in range(10)])
    write_rows(tmp_path / "val.jsonl", [f"exam {i}" for i in range(7)])
    job = streaming(
        small_job, actor_rollout_ref__rollout__n=3, data__val_files=[str(tmp_path / "val.jsonl")],
        data__val_batch_size=4, trainer__val_before_train=True, trainer__test_freq=4, trainer__total_epochs=2,
    )  # fmt: skip
    recorded = await run_recorded(job, monkeypatch)
    assert [len(batch) for batch in recorded.batches] == [12] * 4
    trained = [str(sample) for batch in recorded.batches for sample in batch.sample_ids]
    wanted = [f"e{epoch}-p{place}-k{k}-a0" for epoch in range(2) for place in range(8) for k in range(3)]
    assert sorted(trained) == sorted(wanted), "each once, in loss and metrics"
    asked = Counter(str(request.sample_id) for request in recorded.requests("train"))
    assert asked == Counter(wanted)
    assert recorded.calls("val") == [4, 3] * 2
    assert {row["state"] for row in rows_of(recorded, 1, 2, 3, 4)} == {"trained"}


# -- C10: fewer rows than one batch ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "long", "words"), [
    (3, 0, r"3 rows, fewer than one batch of data\.train_batch_size=4"),
    (3, 3, r"3 rows \(3 more were dropped .* fewer than one batch of data\.train_batch_size=4"),
    (0, 0, "is empty"),
])  # fmt: skip
async def test_c10_fewer_rows_than_a_batch_are_refused_before_anything_starts(
    small_job: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, long: int, words: str
) -> None:
    questions = [f"question {i}" for i in range(count)] + ["x" * 500] * long
    write_rows(tmp_path / "train.jsonl", questions)
    with pytest.raises((ConfigError, InvalidInputError), match=words):
        await run_recorded(streaming(small_job, data__filter_overlong_prompts=True), monkeypatch)
    assert not list(small_job.run_folder.glob("global_step_*"))


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_c10_a_run_that_can_not_make_one_step_has_failed(
    small_job: Config, monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    """Dynamic sampling drops all but one group of the whole data: that is no run that finished with 0 steps."""
    job = streaming(
        small_job, argosy__max_staleness=max_staleness, algorithm__filter_groups__enable=True,
        algorithm__filter_groups__metric="acc", algorithm__filter_groups__max_num_gen_batches=100,
    )  # fmt: skip

    with pytest.raises(NoFullBatchError, match=r"used up before step 1 is full \(12 drawn, 1 kept, 11 same metric"):
        await run_recorded(job, monkeypatch, outcome=lambda one: Scored(float(one.k if one.position == 5 else 1)))
    assert not list(job.run_folder.glob("global_step_*"))


# -- D8, D14: what is asked for --------------------------------------------------------------------------------------


async def test_d8_each_sample_of_a_group_is_asked_for_under_its_own_name(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is keyed by seed and sample: one seed, and never the same sample twice."""
    recorded = await run_recorded(streaming(small_job, argosy__seed=7, actor_rollout_ref__rollout__n=8), monkeypatch)
    asked = recorded.requests("train")
    assert {request.params.seed for request in asked} == {7}
    assert len({request.sample_id for request in asked}) == len(asked) == 12 * 8
    assert set(recorded.calls("train")) == {1}, "one by one"


async def test_d14_validation_does_not_move_what_a_stream_asks_for(
    small_job: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "val.jsonl", [f"exam {i}" for i in range(3)])
    exam = {"data.val_files": [str(tmp_path / "val.jsonl")], "trainer.val_before_train": True, "trainer.test_freq": 1}
    asked = []
    for name, values in (("plain", {}), ("validated", exam)):
        job = streaming(small_job).with_values(values | {"trainer.default_local_dir": str(tmp_path / name)})
        recorded = await run_recorded(job, monkeypatch)
        asked.append(sorted(recorded.requests("train"), key=lambda request: request.sample_id))
        exams = recorded.requests("val")
        assert len(exams) == (12 if values else 0)
        assert {(one.params.temperature, one.sample_id.k) for one in exams} <= {(0.0, 0)}
    assert asked[0] == asked[1]
    assert {request.params.temperature for request in asked[0]} == {1.0}
    assert Counter(request.sample_id.group for request in asked[0]).most_common()[-1][1] == 4


# -- H5: where a run goes on -----------------------------------------------------------------------------------------


@pytest.fixture
async def stopped(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A job whose run was stopped after two steps of many, with groups under way."""
    job = streaming(small_job, trainer__total_training_steps=6, trainer__save_freq=1)
    await run_recorded(job, monkeypatch)
    for step in (3, 4, 5, 6):
        (job.run_folder / f"global_step_{step}").rename(job.run_folder / f"lost_{step}")
    (job.run_folder / "latest_checkpointed_iteration.txt").write_text("2\n")
    under_way = read_checkpoint(job.run_folder / "global_step_2").in_flight()
    assert under_way["stream"]["finished"] or under_way["stream"]["source"]["groups"]
    return job


async def test_h5_a_stream_goes_on_with_what_was_under_way(stopped: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = await run_recorded(stopped, monkeypatch)
    assert "resumed from" in recorded.screen
    assert [len(batch) for batch in recorded.batches] == [16] * 4
    trained = [row["sample_id"] for row in rows_of(recorded, *range(1, 7)) if row["state"] == "trained"]
    assert len(trained) == len(set(trained)) == 6 * 16


async def test_h5_groups_under_way_are_not_dropped_by_another_setting(
    stopped: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"groups under way, which a run with argosy\.max_staleness=0 can't take up"):
        await run_recorded(stopped.with_values({"argosy.max_staleness": 0}), monkeypatch)
    assert len(rows_of(stopped.run_folder, 1, 2)) >= 32, "its books are as they were"


@pytest.mark.parametrize("damage", ["missing", "torn"])
async def test_h5_what_was_under_way_is_part_of_the_checkpoint(
    stopped: Config, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    manifest = json.loads((stopped.run_folder / "global_step_2" / "manifest.json").read_text())
    [name] = [name for name in manifest["files"] if name.startswith("in_flight")]
    path = stopped.run_folder / "global_step_2" / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptDataError, match=name):
        await run_recorded(stopped, monkeypatch)
