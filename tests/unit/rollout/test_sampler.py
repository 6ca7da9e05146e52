from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argosy.rollout.engines.hf.batching import make_settings
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.engines.sampling.sampler import Banned, Penalties, Settings, draw
from argosy.types.ids import SampleId
from argosy.types.records import GenerateRequest, SamplingParams
from unit.rollout.reference import distribution

BASE = SamplingParams(max_tokens=8)
UNIFORMS = torch.tensor([0.0005, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9999], dtype=torch.float64)


def settings_of(rows: list[SamplingParams], vocab_size: int) -> Settings:
    samples = [
        Sample(
            GenerateRequest(SampleId(0, 0, k), (0,), params),
            stop_ids=frozenset(),
            stops=None,
            max_model_len=99,
            deliver=lambda event: None,
        )
        for k, params in enumerate(rows)
    ]
    return make_settings(samples, vocab_size, torch.device("cpu"))


def check(logits: Tensor, params: SamplingParams, seen: tuple[int, ...] = (), banned: tuple[int, ...] = ()) -> None:
    """Draw with several uniforms: each token is the reference's inverse CDF, with the reference's log-prob."""
    vocab_size = len(logits)
    count = len(UNIFORMS)
    tokens, log_probs = draw(
        logits.repeat(count, 1),
        UNIFORMS,
        settings_of([params] * count, vocab_size),
        Penalties(*_flat(count, seen), torch.full((count * len(seen),), params.repetition_penalty)) if seen else None,
        Banned(*_flat(count, banned)) if banned else None,
    )
    expected = distribution(logits.tolist(), params, seen, banned)
    for token, log_prob, uniform in zip(tokens.tolist(), log_probs.tolist(), UNIFORMS.tolist(), strict=True):
        assert expected[token] > 0
        assert log_prob == pytest.approx(math.log(expected[token]), abs=5e-6)
        below = math.fsum(expected[:token])
        if params.temperature == 0:
            assert token == max(range(vocab_size), key=lambda t: (expected[t], -t))
        else:
            assert below - 1e-6 <= uniform <= below + expected[token] + 1e-6


def _flat(count: int, tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    rows = torch.arange(count).repeat_interleave(len(tokens))
    return rows, torch.tensor(tokens * count)


@pytest.mark.parametrize("vocab_size", [2, 17, 256, 259, 1000, 5000])
@pytest.mark.parametrize(
    "params",
    [
        BASE,
        replace(BASE, temperature=0),
        replace(BASE, temperature=0.5),
        replace(BASE, temperature=3.0),
        replace(BASE, top_k=5),
        replace(BASE, top_p=0.9),
        replace(BASE, top_p=0.0),
        replace(BASE, min_p=0.1),
        replace(BASE, temperature=1.5, top_k=50, top_p=0.8, min_p=0.05, repetition_penalty=1.3),
    ],
)
def test_equals_the_float64_reference(vocab_size: int, params: SamplingParams) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(vocab_size, generator=generator) * 3
    seen = (0, 1, vocab_size - 1) if params.repetition_penalty != 1 else ()
    check(logits, params, seen)


@settings(max_examples=150, deadline=None)
@given(
    # Few distinct values: ties are the hard part.
    st.lists(st.integers(-6, 6), min_size=2, max_size=40),
    st.builds(
        SamplingParams,
        max_tokens=st.just(8),
        temperature=st.sampled_from([0, 0.3, 0.7, 1.0, 2.5]),
        top_k=st.sampled_from([-1, 0, 1, 2, 3, 7, 100]),
        # Not at the edge of a float64 sum of equal probabilities, where the reference itself rounds.
        top_p=st.sampled_from([0.0, 0.137, 0.519, 0.903, 1.0]),
        min_p=st.sampled_from([0.0, 0.011, 0.237, 0.93]),
        repetition_penalty=st.sampled_from([1.0, 0.7, 1.9]),
    ),
    st.sets(st.integers(0, 1), max_size=1),
)
def test_equals_the_reference_for_any_parameters(values: list[int], params: SamplingParams, banned: set[int]) -> None:
    seen = (0, len(values) - 1) if params.repetition_penalty != 1 else ()
    check(torch.tensor(values, dtype=torch.float32) / 2, params, seen, tuple(banned))


def test_rows_do_not_influence_each_other() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 300, generator=generator) * 2
    rows = [
        BASE,
        replace(BASE, temperature=0),
        replace(BASE, top_k=3),
        replace(BASE, top_p=0.7, temperature=0.8),
        replace(BASE, min_p=0.2),
    ]
    uniforms = torch.rand(5, generator=generator, dtype=torch.float64)
    tokens, log_probs = draw(logits.clone(), uniforms, settings_of(rows, 300))
    for row in range(5):
        alone = draw(logits[row : row + 1].clone(), uniforms[row : row + 1], settings_of([rows[row]], 300))
        assert tokens[row] == alone[0][0]
        assert log_probs[row].item() == pytest.approx(alone[1][0].item(), abs=1e-6)


def test_nucleus_wider_than_the_first_search() -> None:
    """A flat distribution over 4000 tokens needs 3600 of them for 0.9."""
    check(torch.linspace(0, 0.01, 4000), replace(BASE, top_p=0.9))
    check(torch.linspace(0, 0.01, 4000), replace(BASE, top_p=0.9, top_k=3000))


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, 500] = 0.0
    for uniform in (1e-16, 0.5, 1 - 1e-16):
        tokens, log_probs = draw(logits.clone(), torch.tensor([uniform], dtype=torch.float64), Settings())
        assert tokens.item() == 500
        assert log_probs.item() == 0.0


def test_broken_logits_are_visible() -> None:
    for value in (math.nan, math.inf):
        logits = torch.zeros(1, 300)
        logits[0, 3] = value
        _, log_probs = draw(logits, torch.tensor([0.5], dtype=torch.float64), Settings())
        assert not math.isfinite(log_probs.item())


def test_empirical_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    count = 20000
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, _ = draw(logits.repeat(count, 1), uniforms, Settings())
    frequencies = torch.bincount(tokens, minlength=5) / count
    assert torch.allclose(frequencies, logits.softmax(0), atol=1e-3)


def test_b8_log_prob_is_of_logits_over_temperature() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0])
    for temperature, expected in ((0.5, -0.02058), (1.0, -0.16985)):
        params = replace(BASE, temperature=temperature)
        tokens, log_probs = draw(
            logits[None].clone(), torch.tensor([0.1], dtype=torch.float64), settings_of([params], 3)
        )
        assert tokens.item() == 0
        assert log_probs.item() == pytest.approx(expected, abs=1e-5)


def test_greedy_reports_the_log_prob_under_temperature_one() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0])
    params = replace(BASE, temperature=0, top_k=1, top_p=0.5)
    tokens, log_probs = draw(logits[None].clone(), torch.tensor([0.99], dtype=torch.float64), settings_of([params], 3))
    assert tokens.item() == 0
    assert log_probs.item() == pytest.approx(-0.16985, abs=1e-5)
