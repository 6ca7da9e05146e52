from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.modeling.microbatch import MicroBatchLimit, plan_micro_batches
from argosy.modeling.packing import pack
from argosy.types.errors import InvalidInputError
from argosy.types.ragged import Ragged

BATCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=24)


def columns(shape: list[tuple[int, int]]) -> tuple[Ragged, Ragged]:
    """(which of four prompts, response length) per row."""
    prompts = Ragged.from_rows([[1 + which] * (2 + 3 * which) for which, _ in shape], np.int32)
    return prompts, Ragged.from_rows([[9] * length for _, length in shape], np.int32)


@settings(deadline=None)
@given(BATCHES, st.integers(41, 200))
def test_by_tokens_every_row_once_within_the_budget(shape: list[tuple[int, int]], budget: int) -> None:
    prompts, responses = columns(shape)
    plan = plan_micro_batches(prompts, responses, MicroBatchLimit(max_tokens=budget))
    assert sorted(row for rows in plan for row in rows.tolist()) == list(range(len(shape)))
    for rows in plan:
        assert len(pack(prompts.take(rows), responses.take(rows)).input_ids) <= budget


@settings(deadline=None)
@given(BATCHES, st.integers(1, 9))
def test_by_sequences_every_row_once_in_even_parts(shape: list[tuple[int, int]], limit: int) -> None:
    plan = plan_micro_batches(*columns(shape), MicroBatchLimit(max_sequences=limit))
    assert sorted(row for rows in plan for row in rows.tolist()) == list(range(len(shape)))
    assert len(plan) == -(-len(shape) // limit)
    if plan:
        assert max(map(len, plan)) - min(map(len, plan)) <= 1


def test_samples_of_one_prompt_stay_together() -> None:
    prompts, responses = columns([(which, 5) for _ in range(4) for which in (0, 1)])
    plan = plan_micro_batches(prompts, responses, MicroBatchLimit(max_sequences=4))
    assert [rows.tolist() for rows in plan] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_shared_prompt_counts_once_against_the_budget() -> None:
    prompts, responses = columns([(3, 11)] * 4)  # 11 prompt tokens, then 10 rows each
    assert len(plan_micro_batches(prompts, responses, MicroBatchLimit(max_tokens=51))) == 1
    assert len(plan_micro_batches(prompts, responses, MicroBatchLimit(max_tokens=50))) == 2


def test_a_sequence_over_the_budget_is_refused_with_the_numbers() -> None:
    prompts, responses = columns([(0, 5), (3, 30)])
    with pytest.raises(InvalidInputError, match=r"row 1 needs 40 tokens, more than the 39.*ppo_max_token_len_per_gpu"):
        plan_micro_batches(prompts, responses, MicroBatchLimit(max_tokens=39))


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_sequences must be at least 1, got 0"):
        MicroBatchLimit(max_sequences=0)
