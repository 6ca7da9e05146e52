"""The whole loop over services that answer at once: which groups are trained, when the run ends, what the books say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.config import Config
from argosy.controller.ledger import read_segment
from argosy.controller.stages.filtering import (
    FLAT,
    SURPLUS,
    UNJUDGED,
    GroupFilter,
    NoFullBatchError,
    drop_reason,
    metric_of,
)
from argosy.types.errors import ConfigError
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Abstained, Completion, Failed, FinishReason, Outcome, Prompt, Scored
from unit.config.effects.recorded import Recorded, run_recorded


def job_with_filter(job: Config, **values: object) -> Config:
    common = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "acc"}
    return job.with_values(common | {name.replace("__", "."): value for name, value in values.items()})


def mixed_at(positions: Callable[[int], bool]) -> Callable[[SampleId], Outcome]:
    """Two of four responses are right in the named groups; all are right in the others."""
    return lambda sample: Scored(float(sample.k % 2 if positions(sample.position) else 1))


def groups(recorded: Recorded) -> list[list[str]]:
    """The groups of each step, by name."""
    return [sorted({str(sample.group) for sample in batch.sample_ids}) for batch in recorded.batches]


def reasons(recorded: Recorded, step: int) -> Counter[str]:
    """What became of the samples of a step."""
    rows = read_segment(recorded.folder / "ledger", step)
    return Counter(row["reason"] or row["state"] for row in rows)


async def test_b19_every_group_the_same(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops after the allowed rounds, with counts; nothing is trained."""
    job = job_with_filter(
        small_job, algorithm__filter_groups__max_num_gen_batches=3, trainer__total_training_steps=5
    )  # fmt: skip
    wanted = (
        r"step 1: 3 generation batches \(algorithm.filter_groups.max_num_gen_batches=3\) of 4 prompts gave only 0 of "
        r"data.train_batch_size=4 groups whose acc differs within the group \(12 drawn, 0 kept, 12 same metric"
    )
    with pytest.raises(NoFullBatchError, match=wanted):
        await run_recorded(job, monkeypatch, outcome=mixed_at(lambda _: False))
    assert not (small_job.run_folder / "global_step_0").exists()


async def test_b19_endless_sampling_is_bounded_without_a_limit(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches are a data epoch, one is what a step takes."""
    job = job_with_filter(small_job, trainer__total_training_steps=5)
    with pytest.raises(NoFullBatchError, match=r"step 1: 4 generation batches .*16 drawn"):
        await run_recorded(job, monkeypatch, outcome=mixed_at(lambda _: False))


async def test_b19_one_mixed_group_a_round(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes four rounds, over the end of a data epoch, and is trained at its whole size; the books balance."""
    job = job_with_filter(small_job, trainer__total_training_steps=1)
    recorded = await run_recorded(job, monkeypatch, outcome=mixed_at(lambda position: position % 4 == 2))
    assert groups(recorded) == [["e0-p10", "e0-p2", "e0-p6", "e1-p2"]]
    assert recorded.calls("train") == [16, 16, 16, 16]
    assert len(recorded.batches[0]) == 16
    assert recorded.metrics("train/num_gen_batches") == [4.0]
    assert recorded.metrics("filter_groups/filtered_fraction") == [0.75]
    assert recorded.metrics("filter_groups/flat_groups") == [12.0]
    assert recorded.metrics("filter_groups/acc/mean") == [(0.5 + 3) / 4]
    assert recorded.metrics("reward/acc/mean") == []  # the scorer names no acc: its score stands for it
    assert reasons(recorded, 1) == {"trained": 16, f"dynamic sampling: {FLAT}": 48}


async def test_b19_the_data_ends_in_the_middle_of_a_step(
    small_job: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Step 1 takes two batches; the third leaves step 2 half full: a clean end after step 1, which is saved."""
    recorded = await run_recorded(
        job_with_filter(small_job), monkeypatch, outcome=mixed_at(lambda position: position % 2 == 0)
    )
    assert groups(recorded) == [["e0-p0", "e0-p2", "e0-p4", "e0-p6"]]
    assert recorded.report is not None
    assert recorded.report.step == 1
    assert recorded.checkpoints == ["global_step_1"]
    assert "the run ends after step 1 of at most 3: the data of trainer.total_epochs=1 is used up before" in caplog.text
    assert "4 drawn, 2 kept, 2 same metric in the whole group" in caplog.text


async def test_what_is_done_is_saved_before_the_error(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_with_filter(
        small_job, algorithm__filter_groups__max_num_gen_batches=1, trainer__total_training_steps=5
    )  # fmt: skip
    with pytest.raises(NoFullBatchError, match="step 2: 1 generation batches"):
        await run_recorded(job, monkeypatch, outcome=mixed_at(lambda position: position < 4))
    assert (job.run_folder / "global_step_1" / "manifest.json").exists()


async def test_surplus_groups_are_dropped_in_the_order_of_the_draw(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with_filter(small_job, data__gen_batch_size=6)
    recorded = await run_recorded(job, monkeypatch, outcome=mixed_at(lambda position: position != 1))
    assert groups(recorded)[0] == ["e0-p0", "e0-p2", "e0-p3", "e0-p4"]
    assert groups(recorded)[1] == ["e0-p6", "e0-p7", "e0-p8", "e0-p9"]
    assert reasons(recorded, 1) == {"trained": 16, f"dynamic sampling: {FLAT}": 4, "dynamic sampling: surplus": 4}
    assert recorded.metrics("filter_groups/surplus_groups") == [1.0, 2.0]


async def test_c13_resume_with_filtered_rounds_in_between(
    small_job: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after step 2 and resumed in a fresh process' state: steps 3 to 5 are those of the unbroken run."""
    outcome = mixed_at(lambda position: position % 3 != 1)
    job = job_with_filter(small_job, data__shuffle=True, data__seed=3, trainer__total_training_steps=5)
    unbroken = await run_recorded(job, monkeypatch, outcome=outcome)
    assert max(unbroken.metrics("train/num_gen_batches")) > 1
    other = {"trainer.default_local_dir": str(tmp_path / "broken")}
    first = await run_recorded(
        job.with_values(other | {"trainer.total_training_steps": 2}), monkeypatch, outcome=outcome
    )  # fmt: skip
    second = await run_recorded(job.with_values(other), monkeypatch, outcome=outcome)
    assert groups(first) + groups(second) == groups(unbroken)
    for step in range(1, 6):
        ours, theirs = (read_segment(run.folder / "ledger", step) for run in (second, unbroken))
        assert [row["sample_id"] for row in ours] == [row["sample_id"] for row in theirs]


async def test_greedy_baselines_of_dropped_groups_are_dropped(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ReMax with dynamic sampling: the greedy answer is no sample of its group."""
    job = job_with_filter(small_job, algorithm__adv_estimator="remax", trainer__total_training_steps=1)
    recorded = await run_recorded(
        job, monkeypatch, outcome=lambda s: Scored(float(s.k if s.position % 2 else (s.k == 4)))
    )
    assert groups(recorded) == [["e0-p1", "e0-p3", "e0-p5", "e0-p7"]]
    assert reasons(recorded, 1) == {"trained": 16, "baseline": 4, f"dynamic sampling: {FLAT}": 20}


async def test_the_greedy_answer_is_asked_for_scored_and_never_trained(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job.with_values({"algorithm.adv_estimator": "remax", "trainer.total_training_steps": 1,
                                 "actor_rollout_ref.rollout.top_p": 0.9})  # fmt: skip
    recorded = await run_recorded(job, monkeypatch)
    greedy = [request for request in recorded.requests("train") if request.params.temperature == 0]
    assert [str(request.sample_id) for request in greedy] == [f"e0-p{position}-k4-a0" for position in range(4)]
    assert {request.params.top_p for request in greedy} == {1.0}
    [batch] = recorded.batches
    assert max(sample.k for sample in batch.sample_ids) == 3
    assert [float(row[0]) for row in batch.ragged("advantages")][:4] == [-4.0, -3.0, -2.0, -1.0]
    assert recorded.metrics("rollout/greedy_answers") == [4.0]
    assert recorded.metrics("critic/score/max") == [3.0]
    assert reasons(recorded, 1) == {"trained": 16, "baseline": 4}


async def test_rejected_samples_are_dropped_in_the_books(small_job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job.with_values({
        "algorithm.rollout_correction.rollout_rs": "seq_sum_k1", "trainer.total_training_steps": 1,
        "algorithm.rollout_correction.rollout_rs_threshold": "5.0",
        "argosy.parity.enabled": False,  # the two sides differ on purpose
    })  # fmt: skip
    recorded = await run_recorded(job, monkeypatch, policy_log_prob=-0.9)
    [batch] = recorded.batches
    kept = [bool(row.any()) for row in batch.ragged("response_mask")]
    # lengths 3, 4, 5, 6: their log ratios sum to -1.2 … -2.4, and log 5 is 1.61
    assert kept == [True, True, False, False] * 4
    assert reasons(recorded, 1)["trained"] == 8
    assert reasons(recorded, 1)["no token of it is trained: it is empty, or was rejected"] == 8
    assert recorded.metrics("rollout_corr/rollout_rs_seq_masked_fraction") == [0.5]
    assert recorded.metrics("rollout_corr/kl") == pytest.approx([0.4])


def test_unjudged_responses_do_not_make_a_difference() -> None:
    nan = math.nan
    assert drop_reason([1.0, 0.0, nan]) is None
    assert drop_reason([1.0, 1.0, nan]) == FLAT
    assert drop_reason([1.0, nan, nan]) == UNJUDGED
    assert drop_reason([]) == UNJUDGED
    assert drop_reason([0.3, 0.3 + 1e-9]) == FLAT


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=3, max_size=3), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_every_group_is_kept_or_dropped_whatever_the_order_of_arrival(
    scores: list[list[float | None]], wanted: int, size: int, random: Random
) -> None:
    """Groups of three in generation batches of `size`: the first `wanted` mixed ones are kept, in order."""
    config = Config().with_values({
        "data.train_batch_size": wanted, "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "score",
    })  # fmt: skip
    found = GroupFilter(config)
    dropped: dict[GroupId, str] = {}
    for start in range(0, len(scores), size):
        positions = range(start, min(start + size, len(scores)))
        samples = [SampleId(0, position, k) for position in positions for k in range(3)]
        random.shuffle(samples)
        outcomes = {s: Abstained() if (v := scores[s.position][s.k]) is None else Scored(v) for s in samples}
        completions = {s: Completion(s, (1,), (-0.1,), (), FinishReason.STOP) for s in samples}
        dropped |= found.add([Prompt(GroupId(0, p), (1,), "s", "") for p in positions], completions, outcomes)
    mixed = [p for p, row in enumerate(scores) if len({value for value in row if value is not None}) > 1]
    kept = [prompt.group.position for prompt in found.kept]
    assert kept == mixed[:wanted]
    assert sorted([*kept, *(group.position for group in dropped)]) == list(range(len(scores)))
    assert sorted(g.position for g, reason in dropped.items() if reason == SURPLUS) == mixed[wanted:]
    assert found.full is (len(mixed) >= wanted)
    shares = found.metrics()
    assert shares["filter_groups/filtered_fraction"] == pytest.approx(1 - len(kept) / len(scores))


def test_metrics_by_name() -> None:
    def job(name: str) -> Config:
        return Config().with_values({"algorithm.filter_groups.metric": name})

    scored = Scored(0.25, {"acc": True, "pred": "7", "form": 0.5})
    assert [metric_of(job(name), scored, 3) for name in ("acc", "score", "seq_reward", "form")] == [
        1.0,
        0.25,
        0.25,
        0.5,
    ]
    assert metric_of(job("acc"), Scored(0.25), 3) == 0.25
    assert all(math.isnan(metric_of(job("form"), outcome, 3)) for outcome in (Abstained(), Failed("timeout")))
    with pytest.raises(ConfigError, match="returns no number 'pred'; it returns score, acc, form"):
        metric_of(job("pred"), scored, 3)
