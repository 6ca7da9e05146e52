from __future__ import annotations

import doctest
import string

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import argosy.modeling.packing as packing
from argosy.modeling.log_probs import token_stats
from argosy.modeling.packing import pack
from argosy.types.ragged import Ragged

IDS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def test_documented_examples_hold() -> None:
    assert doctest.testmod(packing).failed == 0


def test_b23_log_probs_come_from_the_position_before() -> None:
    """Ids [a, b, c, d], prompt length 2, a model that says "next letter" with probability 0.9."""
    letters = [string.ascii_lowercase.index(letter) for letter in "abcd"]
    packed = pack(Ragged.from_rows([letters[:2]], np.int32), Ragged.from_rows([letters[2:]], np.int32))
    assert packed.output_rows.tolist() == [1, 2]
    probabilities = torch.full((26, 26), 0.1 / 25, dtype=torch.float64)
    probabilities[torch.arange(26), (torch.arange(26) + 1) % 26] = 0.9
    one_hot = torch.eye(26, dtype=torch.float64)  # the hidden state is the token itself, so W = log P transposed
    outputs = one_hot[packed.input_ids][packed.output_rows]
    stats = token_stats(outputs, probabilities.log().T, packed.targets)
    torch.testing.assert_close(stats.log_probs, torch.full((2,), 0.9, dtype=torch.float64).log())


def test_the_last_response_token_takes_no_row_and_prompts_are_computed_once() -> None:
    prompts = Ragged.from_rows([[1, 2, 3]] * 4, np.int32)
    responses = Ragged.from_rows([[4], [4, 5], [6, 7, 8], []], np.int32)
    assert len(pack(prompts, responses).input_ids) == 3 + 0 + 1 + 2
    assert len(pack(prompts, responses, share_prompts=False).input_ids) == 3 * 3 + 0 + 1 + 2


def test_nothing_to_predict_gives_an_empty_row() -> None:
    packed = pack(Ragged.from_rows([[1, 2]], np.int32), Ragged.from_rows([[]], np.int32))
    assert (len(packed.input_ids), len(packed.targets), packed.layout.buckets) == (0, 0, ())


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(IDS, st.lists(st.integers(0, 5), max_size=9)), min_size=1, max_size=8), st.booleans())
def test_each_sequence_can_be_read_back_from_the_layout(
    sequences: list[tuple[list[int], list[int]]], share: bool
) -> None:
    prompts = Ragged.from_rows([prompt for prompt, _ in sequences], np.int32)
    responses = Ragged.from_rows([response for _, response in sequences], np.int32)
    packed = pack(prompts, responses, share_prompts=share)
    expected = sorted(tuple((prompt + response)[:-1]) for prompt, response in sequences if response)
    found = []
    for bucket in packed.layout.buckets:
        for line in bucket:
            length = int(packed.position_ids[line].max()) + 1  # padding repeats the first row, at position 0
            rows = line[:length]
            assert packed.position_ids[rows].tolist() == list(range(length))
            assert set(line[length:].tolist()) <= {int(line[0])}
            found.append(tuple(packed.input_ids[rows].tolist()))
    assert sorted(found) == expected
    flat = torch.cat([torch.zeros(0, dtype=torch.int64), *(bucket.reshape(-1) for bucket in packed.layout.buckets)])
    assert torch.equal(flat[packed.layout.restore], torch.arange(len(packed.input_ids)))
    assert packed.targets.tolist() == [token for _, response in sequences for token in response]
