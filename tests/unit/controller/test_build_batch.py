"""The batch of a step is built at once, and is what building it row by row would give."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.controller.stages.advantage import build_batch
from argosy.controller.stages.shaping import token_rewards
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SAMPLE_ORDER, PolicyVersion, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Abstained, Completion, Failed, FinishReason, Outcome, Prompt, Scored, VersionRun

VERSION = PolicyVersion("l0", 0, "00")
Row = tuple[Completion, Outcome]


def row_by_row(prompts: list[Prompt], rows: dict[SampleId, Row]) -> TrajectoryBatch:
    """One row after the other, by the ids' own order."""
    by_group = {prompt.group: prompt for prompt in prompts}
    order = sorted(rows)
    scores = [outcome.score if isinstance(outcome, Scored) else np.nan for _, outcome in map(rows.get, order)]  # type: ignore[misc]
    answers = [rows[sample][0] for sample in order]
    mask = [
        [0] * len(row.token_ids) if np.isnan(score) else row.mask for row, score in zip(answers, scores, strict=True)
    ]
    rewards = [
        token_rewards(rows[sample][1], len(row.token_ids), row.response_mask, row.turn_rewards)
        for sample, row in zip(order, answers, strict=True)
    ]
    batch = TrajectoryBatch.build(
        order,
        [by_group[sample.group].token_ids for sample in order],
        [row.token_ids for row in answers],
        mask,
        rollout_log_probs=Ragged.from_rows([row.log_probs for row in answers], np.float32),
    )
    return batch.with_scalars("score", scores).with_column("token_rewards", Ragged.from_rows(rewards, np.float32))


@st.composite
def rows_of_a_step(draw: st.DrawFn) -> tuple[list[Prompt], dict[SampleId, Row]]:
    """Plain answers, conversations with masked tokens, dense scores, rewards on the way, unjudged and empty ones."""
    numbers = st.floats(-5, 5, width=32)
    rows: dict[SampleId, Row] = {}
    groups = draw(st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True))
    for position in groups:
        for k in range(draw(st.integers(1, 3))):
            length = draw(st.integers(0, 6))
            sample = SampleId(draw(st.integers(0, 1)), position, k)
            mask = draw(st.just(()) | st.lists(st.integers(0, 1), min_size=length, max_size=length).map(tuple))
            on_the_way = draw(st.lists(st.tuples(st.integers(0, length - 1), numbers), max_size=2)) if length else []
            dense = draw(st.just(()) | st.lists(numbers, min_size=length, max_size=length + 1).map(tuple))
            verdicts: list[Outcome] = [Scored(draw(numbers), {}, dense), Scored(0.1), Abstained("x"), Failed("timeout")]
            outcome = draw(st.sampled_from(verdicts))
            completion = Completion(
                sample, tuple(range(length)), tuple(-draw(numbers) for _ in range(length)),
                (VersionRun(VERSION, length),), FinishReason.STOP, response_mask=mask, turn_rewards=tuple(on_the_way),
            )  # fmt: skip
            rows[sample] = completion, outcome
    prompts = [Prompt(group, tuple(range(3)), "s", "1") for group in {sample.group for sample in rows}]
    shuffled = draw(st.permutations(list(rows)))
    return prompts, {sample: rows[sample] for sample in shuffled}


@settings(max_examples=150, deadline=None)
@given(rows_of_a_step())
def test_it_is_what_row_by_row_gives_to_the_bit(step: tuple[list[Prompt], dict[SampleId, Row]]) -> None:
    prompts, rows = step
    built = build_batch(prompts, {s: row for s, (row, _) in rows.items()}, {s: out for s, (_, out) in rows.items()})
    assert built.to_ipc() == row_by_row(prompts, rows).to_ipc()


@given(st.lists(st.builds(SampleId, *[st.integers(0, 12)] * 4)))
def test_many_ids_are_sorted_as_ids_are(samples: list[SampleId]) -> None:
    assert sorted(samples, key=SAMPLE_ORDER) == sorted(samples)


def test_a_column_given_by_id_takes_the_rows_of_the_batch() -> None:
    samples = [SampleId(0, 0, k) for k in range(3)]
    batch = TrajectoryBatch.build(samples, [[1]] * 3, [[5], [6, 7], []])
    rows = {samples[2]: [], samples[0]: [0.5], samples[1]: [1.5, 2.5]}
    assert batch.with_rows("values", rows).ragged("values").values.tolist() == [0.5, 1.5, 2.5]
