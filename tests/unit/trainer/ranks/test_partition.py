"""Balanced parts, and as many micro-batches on every rank (case E1)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.ranks.partition import SequenceCost, divide, in_step, karmarkar_karp, plan_ranks
from argosy.types.errors import InvalidInputError
from argosy.types.ragged import Ragged

COST = SequenceCost(hidden_size=64)


def batch_of(shape: list[tuple[int, list[int]]]) -> tuple[Ragged, Ragged]:
    """(prompt length, response lengths) of each group; prompts of unlike groups differ."""
    prompts, responses = [], []
    for number, (prompt, lengths) in enumerate(shape):
        for length in lengths:
            prompts.append([number + 1] * prompt)
            responses.append([7] * length)
    return Ragged.from_rows(prompts, np.int32), Ragged.from_rows(responses, np.int32)


def best_by_trying(costs: list[int], parts: int) -> int:
    """The least possible largest sum."""
    return min(
        max(sum(cost for cost, place in zip(costs, places, strict=True) if place == part) for part in range(parts))
        for places in itertools.product(range(parts), repeat=len(costs))
    )


@settings(deadline=None, max_examples=60)
@given(costs=st.lists(st.integers(0, 50), max_size=7), parts=st.integers(1, 4))
def test_karmarkar_karp_gives_every_item_once_and_is_near_the_optimum(costs: list[int], parts: int) -> None:
    found = karmarkar_karp(costs, parts)
    assert len(found) == parts
    assert sorted(item for part in found for item in part.items) == list(range(len(costs)))
    assert [part.load for part in found] == [sum(costs[item] for item in part.items) for part in found]
    assert max(part.load for part in found) <= 4 / 3 * best_by_trying(costs, parts), "its known bound"
    assert karmarkar_karp(costs, parts) == found


def test_karmarkar_karp_beats_largest_first_on_the_textbook_case() -> None:
    """8, 7, 6, 5, 4: largest-first gives 17 and 13, differencing 16 and 14."""
    assert sorted(part.load for part in karmarkar_karp([8, 7, 6, 5, 4], 2)) == [14, 16]


@pytest.mark.parametrize(
    ("lengths", "counts"),
    [([95] * 5 + [20] * 5, (3, 3)), ([95] * 5 + [20], (3, 3)), ([95], (1, 1)), ([], (0, 0))],
)
def test_e1_every_rank_has_as_many_micro_batches(lengths: list[int], counts: tuple[int, int]) -> None:
    prompts, responses = batch_of([(2, [length - 2]) for length in lengths])
    plans = plan_ranks(prompts, responses, MicroBatchLimit(max_tokens=100), 2, COST)
    assert tuple(len(plan.micro_batches) for plan in plans) == counts
    assert sorted(row for plan in plans for row in plan.rows) == list(range(len(lengths)))
    for plan in plans:
        real = [rows for rows, weight in plan.weighted if weight == 1.0]
        assert sorted(row for rows in real for row in rows) == plan.rows.tolist()
        assert all(len(rows) == 1 for rows, weight in plan.weighted if weight == 0.0)


@pytest.mark.parametrize("light", [[20] * 5, [20], []])
def test_e1_parts_as_uneven_as_the_case_are_kept_in_step(light: list[int]) -> None:
    """Five samples of 95 tokens on rank 0 under a budget of 100; five of 20, one, or none on rank 1."""
    lengths = [95] * 5 + light
    prompts, responses = batch_of([(2, [length - 2]) for length in lengths])
    parts = [np.arange(5), np.arange(5, len(lengths))]
    heavy, other = in_step(prompts, responses, parts, MicroBatchLimit(max_tokens=100))
    assert [weight for _, weight in heavy.weighted] == [1.0] * 5
    real = 1 if light else 0
    assert [weight for _, weight in other.weighted] == [1.0] * real + [0.0] * (5 - real)
    assert other.rows.tolist() == parts[1].tolist()


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(
        st.tuples(st.integers(1, 30), st.lists(st.integers(1, 60), min_size=1, max_size=6)), min_size=1, max_size=6
    ),
    ranks=st.integers(1, 4),
    limit=st.sampled_from([MicroBatchLimit(max_tokens=90), MicroBatchLimit(max_sequences=2), MicroBatchLimit()]),
)
def test_e1_any_batch_on_any_number_of_ranks(
    shape: list[tuple[int, list[int]]], ranks: int, limit: MicroBatchLimit
) -> None:
    prompts, responses = batch_of(shape)
    plans = plan_ranks(prompts, responses, limit, ranks, COST)
    assert len({len(plan.micro_batches) for plan in plans}) == 1
    computed = [row for plan in plans for rows, weight in plan.weighted if weight for row in rows]
    assert sorted(computed) == list(range(len(prompts)))


def test_groups_stay_together_where_that_is_even() -> None:
    prompts, responses = batch_of([(20, [10] * 4)] * 4)
    for rows in divide(prompts, responses, 2, COST):
        assert len({tuple(prompts[row]) for row in rows}) == 2
        assert len(rows) == 8


def test_a_group_is_cut_where_one_rank_would_wait_for_the_other() -> None:
    prompts, responses = batch_of([(5, [30] * 8)])
    parts = divide(prompts, responses, 2, COST)
    assert sorted(map(len, parts)) == [4, 4]


def test_a_group_is_not_cut_where_its_prompt_costs_more_than_the_waiting() -> None:
    """A prompt of 500 and two answers of 2: a rank of its own for the second answer would compute the prompt again."""
    prompts, responses = batch_of([(500, [2, 2])])
    loads = [COST.of(500, [len(responses[row]) for row in rows]) for rows in divide(prompts, responses, 2, COST)]
    assert max(loads) <= COST.of(500, [2, 2])


def test_long_sequences_weigh_by_their_square() -> None:
    short, long = COST.of(0, [101]), COST.of(0, [1001])
    assert long / short > 10
    assert SequenceCost(hidden_size=10**9).of(0, [1001]) == pytest.approx(1000)


def test_what_no_micro_batch_can_hold_is_refused() -> None:
    prompts, responses = batch_of([(50, [60])])
    with pytest.raises(InvalidInputError, match="109 tokens, more than the 100"):
        plan_ranks(prompts, responses, MicroBatchLimit(max_tokens=100), 2, COST)
