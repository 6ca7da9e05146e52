"""`argosy.rollout.simulated.*` and `argosy.rollout.sglang.*`, and what is refused of engines that lack it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from argosy.config import Config
from argosy.rollout.engines.simulated import options_of
from argosy.rollout.engines.simulated.language import Language
from argosy.rollout.engines.simulated.latency import Latency
from argosy.rollout.engines.simulated.lengths import hazard_of
from argosy.rollout.engines.simulated.options import SimulatedOptions
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import GenerateRequest, SamplingParams
from unit.config.effects.support import problems

SIMULATED = {"actor_rollout_ref.rollout.name": "simulated", "argosy.parity.enabled": False}


def options(job: Config, **values: Any) -> SimulatedOptions:
    return options_of(job.with_values({f"argosy.rollout.simulated.{name}": value for name, value in values.items()}))


def step_s(job: Config, **values: Any) -> float:
    chosen = options(job, **values)
    return Latency(chosen.decode_ms, chosen.decode_ms_per_sample, chosen.prefill_us_per_token).step_s(10, 100)


def lengths(job: Config, **values: Any) -> list[int]:
    """Tokens of 500 answers."""
    chosen = options(job, **values)
    hazard = hazard_of(chosen.length, chosen.length_mean, chosen.length_spread, 1000)
    language, version = Language(50, {2}, hazard), PolicyVersion("main", 0, "d")
    params = SamplingParams(1000)
    requests = [GenerateRequest(SampleId(0, position, 0), (5,), params) for position in range(500)]
    return [len(language.write(one, version, 0, 1000).token_ids) for one in requests]


def test_decode_ms(job: Config) -> None:
    assert step_s(job, decode_ms=20) - step_s(job) == pytest.approx(0.02)


def test_decode_ms_per_sample(job: Config) -> None:
    assert step_s(job, decode_ms_per_sample=3) - step_s(job) == pytest.approx(0.03)


def test_prefill_us_per_token(job: Config) -> None:
    assert step_s(job, prefill_us_per_token=50) - step_s(job) == pytest.approx(0.005)


def test_length(job: Config) -> None:
    assert set(lengths(job, length="fixed")) == {64}
    uniform = lengths(job, length="uniform")
    assert (min(uniform) >= 48, max(uniform) <= 80, len(set(uniform)) > 20) == (True, True, True)


def test_length_mean(job: Config) -> None:
    for length in ("geometric", "lognormal", "uniform"):
        found = lengths(job, length=length, length_mean=100)
        assert sum(found) / len(found) == pytest.approx(100, rel=0.12)


def test_length_spread(job: Config) -> None:
    def deviation(spread: float) -> float:
        found = lengths(job, length="lognormal", length_mean=100, length_spread=spread)
        mean = sum(found) / len(found)
        return float((sum((length - mean) ** 2 for length in found) / len(found)) ** 0.5)

    assert deviation(10) == pytest.approx(10, rel=0.15)
    assert deviation(40) == pytest.approx(40, rel=0.25)


def test_failure(job: Config) -> None:
    assert options(job, failure="hang").failure == "hang"
    assert "argosy.rollout.simulated.failure: got 'boom'" in problems(
        job.with_values({"argosy.rollout.simulated.failure": "boom"})
    )


def test_failure_after(job: Config) -> None:
    assert options(job, failure_after=7).failure_after == 7


def test_parity_needs_an_engine_that_computes(job: Config) -> None:
    changed = job.with_values({**SIMULATED, "argosy.parity.enabled": True})
    assert "argosy.parity.enabled: got true with actor_rollout_ref.rollout.name=simulated" in problems(changed)
    assert problems(job.with_values(SIMULATED)) == ""


@pytest.mark.parametrize(("engine", "advised"), [("simulated", "hf"), ("sglang", "hf")])
def test_what_an_engine_lacks_is_refused_with_the_keys_name(job: Config, engine: str, advised: str) -> None:
    values = {**SIMULATED, "actor_rollout_ref.rollout.name": engine}
    changed = job.with_values({**values, "actor_rollout_ref.rollout.repetition_penalty": 1.2})
    found = problems(changed)
    assert f"actor_rollout_ref.rollout.repetition_penalty: got 1.2, which the engine {engine} doesn't have" in found
    assert f"rollout.name={advised}" in found


def test_deterministic_needs_an_engine_that_is(job: Config) -> None:
    values = {"actor_rollout_ref.rollout.name": "sglang", "argosy.deterministic": True}
    assert "argosy.deterministic: got true with actor_rollout_ref.rollout.name=sglang" in problems(
        job.with_values(values)
    )


def test_options_reach_the_engine_whole(job: Config) -> None:
    chosen = options_of(job, start_stale=False)
    assert dataclasses.replace(chosen, start_stale=True) == options_of(job)
    assert (chosen.slot_count, chosen.max_model_len) == (8, 72)
