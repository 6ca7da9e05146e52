"""Dynamic sampling: 8 rows in file order, 4 groups a step; both responses of the first two rows are scored the same."""

from __future__ import annotations

import pytest

from argosy.config import Config
from argosy.controller.stages.filtering import NoFullBatchError
from argosy.types.ids import SampleId
from argosy.types.records import Outcome, Scored
from unit.config.effects.recorded import Recorded, run_recorded


def outcome(sample: SampleId) -> Outcome:
    """The scores of rows 0 and 1 don't differ; acc doesn't differ in rows 2 and 3."""
    score = float(sample.k if sample.position > 1 else 1)
    return Scored(score, {"acc": float(sample.k if sample.position not in (2, 3) else 0)})


async def run(job: Config, monkeypatch: pytest.MonkeyPatch, **values: object) -> Recorded:
    common = {"trainer.val_before_train": False, "data.shuffle": False}
    return await run_recorded(job.with_values(common | values), monkeypatch, outcome=outcome)


def rows(recorded: Recorded, step: int = 0) -> list[int]:
    """Which rows a step was trained on."""
    return sorted({sample.position for sample in recorded.batches[step].sample_ids})


FILTER = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "score"}


async def test_enable(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values({
        "algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "score"
    })  # fmt: skip
    recorded = await run(changed, monkeypatch)
    assert rows(recorded) == [2, 3, 4, 5]
    assert len(recorded.batches) == 1
    assert recorded.metrics("train/num_gen_batches") == [2.0]


async def test_metric(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values(FILTER | {"algorithm.filter_groups.metric": "acc"})
    assert rows(await run(changed, monkeypatch)) == [0, 1, 4, 5]


async def test_max_num_gen_batches(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values(FILTER | {"algorithm.filter_groups.max_num_gen_batches": 1})
    with pytest.raises(NoFullBatchError, match="1 generation batches"):
        await run(changed, monkeypatch)


async def test_gen_batch_size(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 6 prompts of 2 responses; one fills a step, and the other 2 rows of the data epoch make no batch."""
    changed = job.with_values(FILTER | {"data.gen_batch_size": 6})
    recorded = await run(changed, monkeypatch)
    assert recorded.calls("train") == [12]
    assert rows(recorded) == [2, 3, 4, 5]
