"""The whole loop with groups that stream in, over services that answer at once: what is trained, what the books say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.ledger import read_segment
from argosy.controller.stages.filtering import FLAT, NoFullBatchError
from argosy.controller.stream import RUN_OVER, SURPLUS
from argosy.controller.stream_source import SLOWEST
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Outcome, Scored
from unit.config.effects import recorded as harness
from unit.config.effects.recorded import Recorded, run_recorded


def streaming(job: Config, max_staleness: int = 1, **values: Any) -> Config:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return job.with_values({"argosy.max_staleness": max_staleness} | named)


def filtered(job: Config, **values: Any) -> Config:
    return streaming(
        job, algorithm__filter_groups__enable=True, algorithm__filter_groups__metric="acc", **values
    )  # fmt: skip


def mixed_at(positions: Callable[[int], bool]) -> Callable[[SampleId], Outcome]:
    """Two of four responses are right in the named groups; all are right in the others."""
    return lambda sample: Scored(float(sample.k % 2 if positions(sample.position) else 1))


def groups(recorded: Recorded) -> list[list[str]]:
    return [sorted({str(sample.group) for sample in batch.sample_ids}) for batch in recorded.batches]


def reasons(recorded: Recorded, *steps: int) -> Counter[str]:
    """What became of the samples that were finished in these steps."""
    rows = [row for step in steps for row in read_segment(recorded.folder / "ledger", step)]
    return Counter(row["reason"] or row["state"] for row in rows)


async def test_b19_every_group_the_same(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops after as many groups as three rounds have, with counts; nothing is trained."""
    job = filtered(
        small_job, algorithm__filter_groups__max_num_gen_batches=3, trainer__total_training_steps=5
    )  # fmt: skip
    with pytest.raises(
        NoFullBatchError, match=r"step 1: .* gave only 0 of data.train_batch_size=4 .* 0 kept"
    ) as caught:
        await run_recorded(job, monkeypatch, outcome=mixed_at(lambda _: False))
    drawn = int(caught.value.message.split("(")[2].split(" drawn")[0])
    assert 12 <= drawn <= 12 + 8, "no more are drawn than are under way when the limit is reached"
    assert not (job.run_folder / "global_step_0").exists()


async def test_b19_one_mixed_group_a_round(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups without spread are replaced one by one, over the end of a data epoch; each step has its whole size."""
    job = filtered(small_job, trainer__total_training_steps=2)
    recorded = await run_recorded(job, monkeypatch, outcome=mixed_at(lambda position: position % 4 == 2))
    trained = sorted(GroupId.parse(name) for step in groups(recorded) for name in step)
    assert trained == [GroupId(epoch, position) for epoch in range(3) for position in (2, 6, 10)][:8]
    assert [len(batch) for batch in recorded.batches] == [16, 16]
    flat = recorded.metrics("filter_groups/flat_groups")
    assert sum(flat) >= 8 * 3 - 3, "three others come before each of the eight"
    share = recorded.metrics("filter_groups/filtered_fraction")
    assert all(0.5 < one < 0.9 for one in share)
    states = reasons(recorded, 1, 2)
    assert states == {"trained": 32, f"dynamic sampling: {FLAT}": 4 * sum(flat)}


async def test_b19_the_data_ends_in_the_middle_of_a_step(
    small_job: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Six of twelve groups have spread: step 2 stays half full, and the run ends cleanly after step 1."""
    recorded = await run_recorded(
        filtered(small_job), monkeypatch, outcome=mixed_at(lambda position: position % 2 == 0)
    )  # fmt: skip
    assert recorded.report is not None
    assert recorded.report.step == 1
    assert len(groups(recorded)) == 1
    assert recorded.checkpoints == ["global_step_1"]
    assert "the run ends after step 1 of at most 3: the data of trainer.total_epochs=1 is used up before" in caplog.text
    assert "2 kept" in caplog.text


async def test_every_prompt_is_trained_once_in_the_order_of_the_data(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = await run_recorded(streaming(small_job), monkeypatch)
    assert sorted(name for step in groups(recorded) for name in step) == sorted(f"e0-p{p}" for p in range(12))
    assert max(recorded.metrics("staleness/max")) == 1.0
    assert recorded.metrics("stream/stale_groups") == [0.0] * 3
    assert reasons(recorded, 1, 2, 3) == {"trained": 48}


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_over_sampling_stops_the_slowest_samples_of_a_group(
    small_job: Config, monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    """Six are drawn for each prompt, four are trained: here the ones that were asked for first."""
    job = streaming(small_job, max_staleness, argosy__stream__extra_samples=2, trainer__total_training_steps=2)
    recorded = await run_recorded(job, monkeypatch)
    assert [len(batch) for batch in recorded.batches] == [16, 16]
    assert Counter(sample.group for batch in recorded.batches for sample in batch.sample_ids) == Counter(
        {sample.group: 4 for batch in recorded.batches for sample in batch.sample_ids}
    )
    assert reasons(recorded, 1, 2)["trained"] == 32
    assert reasons(recorded, 1, 2)[SLOWEST] >= 16


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_over_sampling_drops_the_slowest_groups(
    small_job: Config, monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    """Two groups more than needed are under way: whatever isn't among the first four by its last step goes."""
    job = streaming(small_job, max_staleness, argosy__stream__extra_groups=2, trainer__total_training_steps=2)
    recorded = await run_recorded(job, monkeypatch)
    assert [len(batch) for batch in recorded.batches] == [16, 16]
    states = reasons(recorded, 1, 2)
    assert states["trained"] == 32
    assert states[SURPLUS] == 4 * sum(recorded.metrics("stream/surplus_groups")) > 0
    assert set(states) == {"trained", SURPLUS}, RUN_OVER


async def test_f16_producers_end_when_the_consumer_is_gone(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer dies in step 2: the run ends with its error, and nothing goes on generating behind it."""
    real = harness._Policy.update

    async def update(self: Any, batch: Any, config: Any, ctx: Any) -> Any:
        if ctx.expected_step == 1:
            raise RuntimeError("the trainer is gone")
        return await real(self, batch, config, ctx)

    monkeypatch.setattr(harness._Policy, "update", update)
    before = asyncio.all_tasks()
    job = streaming(small_job, 2, trainer__total_training_steps=100)
    with pytest.raises(RuntimeError, match="the trainer is gone"):
        await run_recorded(job, monkeypatch)
    await asyncio.sleep(0)
    left = {task.get_name() for task in asyncio.all_tasks() - before if not task.done()}
    assert not left
