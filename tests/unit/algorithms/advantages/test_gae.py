from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms.advantages import AdvantageOptions, estimator
from argosy.algorithms.advantages.gae import temporal_differences
from argosy.algorithms.advantages.tokens import discounted_to_go, trained_tokens
from argosy.types.ragged import Ragged
from support.advantage_references import OPTIONS, Sample, batches, gae_raw, inputs_of


def raw(samples: list[Sample], options: AdvantageOptions) -> list[list[float]]:
    """Advantages before whitening, on trained tokens."""
    inputs = inputs_of(samples)
    assert inputs.values is not None
    tokens = trained_tokens(inputs)
    values = tokens.pick(inputs.values)
    flat = temporal_differences(tokens.fold(inputs.token_rewards), values, options.gamma, options.lam)
    return [row.tolist() for row in Ragged(flat, tokens.offsets)]


def returns(samples: list[Sample], options: AdvantageOptions) -> list[list[float]]:
    result = estimator("gae")(inputs_of(samples), options).returns
    assert result is not None
    assert result.values.dtype == np.float32
    return [row.tolist() for row in result]


B13 = Sample("a", [0, 0, 2, 0], [1, 1, 1, 0], values=[0.5, 0.25, 1.0, 77])
B13_OPTIONS = AdvantageOptions(gamma=1.0, lam=0.9)


def test_b13_values_at_padded_positions_are_not_read() -> None:
    assert raw([B13], B13_OPTIONS)[0] == pytest.approx([1.235, 1.65, 1.0])
    assert returns([B13], B13_OPTIONS)[0] == pytest.approx([1.735, 1.9, 2.0, 0])
    whitened = estimator("gae")(inputs_of([B13]), B13_OPTIONS).advantages[0]
    expected = np.array([1.235, 1.65, 1.0])
    expected = (expected - expected.mean()) / np.sqrt(expected.var(ddof=1) + 1e-8)
    assert whitened.tolist() == pytest.approx([*expected, 0.0], rel=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_b13_tool_tokens_are_no_steps(gamma: float) -> None:
    options = AdvantageOptions(gamma=gamma, lam=0.9)
    with_tools = B13.padded(1).padded(1)
    assert with_tools.mask == [1, 0, 0, 1, 1, 0]
    assert raw([with_tools], options) == raw([B13], options)
    plain, padded = returns([B13], options)[0], returns([with_tools], options)[0]
    assert padded == [plain[0], 0.0, 0.0, *plain[1:]]


@pytest.mark.parametrize("place", [2, 3])
def test_b13_a_terminal_reward_on_a_masked_token_is_kept(place: int) -> None:
    rewards = [0.0] * 4
    rewards[place] = 2.0
    moved = Sample("a", rewards, B13.mask, values=B13.values)
    assert raw([moved], B13_OPTIONS)[0] == pytest.approx([1.235, 1.65, 1.0])


@settings(max_examples=60, deadline=None)
@given(batch=batches(), options=OPTIONS)
def test_returns_are_advantages_before_whitening_plus_values(batch: list[Sample], options: AdvantageOptions) -> None:
    expected = gae_raw(batch, options)
    for got, row, sample in zip(returns(batch, options), expected, batch, strict=True):
        plus = [row[t] + sample.values[t] if t in sample.trained else 0.0 for t in range(len(row))]
        assert got == pytest.approx(plus, abs=1e-5)


def test_lambda_1_returns_are_the_rewards_to_go_whatever_the_critic_says() -> None:
    sample = Sample("a", [0.0, 1.0, 0.0, 2.0], [1] * 4, values=[5.0, -3.0, 0.5, 9.0])
    assert returns([sample], AdvantageOptions(gamma=1.0, lam=1.0))[0] == pytest.approx([3, 3, 2, 2])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=6), st.sampled_from([0.0, 0.5, 0.999, 1.0]), st.integers(0, 2**31))
def test_doubling_equals_the_recursion_on_long_responses(lengths: list[int], factor: float, seed: int) -> None:
    column = Ragged.from_lengths(np.random.default_rng(seed).normal(size=sum(lengths)), lengths)
    expected = []
    for row in column:
        running, backwards = 0.0, []
        for value in reversed(row.tolist()):
            running = value + factor * running
            backwards.append(running)
        expected += reversed(backwards)
    np.testing.assert_allclose(discounted_to_go(column, factor), expected, rtol=1e-12, atol=1e-12)
