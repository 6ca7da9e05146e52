"""`argosy.rollout.simulated.*` and `argosy.rollout.sglang.*`, and what is refused of engines that lack it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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


Values = Mapping[str, Any]


def options(job: Config, values: Values) -> SimulatedOptions:
    return options_of(job.with_values(dict(values)))


def step_s(job: Config, values: Values) -> float:
    chosen = options(job, values)
    return Latency(chosen.decode_ms, chosen.decode_ms_per_sample, chosen.prefill_us_per_token).step_s(10, 100)


def lengths(job: Config, values: Values) -> list[int]:
    """Tokens of 500 answers."""
    chosen = options(job, values)
    hazard = hazard_of(chosen.length, chosen.length_mean, chosen.length_spread, 1000)
    language, version = Language(50, {2}, hazard), PolicyVersion("main", 0, "d")
    params = SamplingParams(1000)
    requests = [GenerateRequest(SampleId(0, position, 0), (5,), params) for position in range(500)]
    return [len(language.write(one, version, 0, 1000).token_ids) for one in requests]


def test_decode_ms(job: Config) -> None:
    assert step_s(job, {"argosy.rollout.simulated.decode_ms": 20}) - step_s(job, {}) == pytest.approx(0.02)


def test_decode_ms_per_sample(job: Config) -> None:
    assert step_s(job, {"argosy.rollout.simulated.decode_ms_per_sample": 3}) - step_s(job, {}) == pytest.approx(0.03)


def test_prefill_us_per_token(job: Config) -> None:
    assert step_s(job, {"argosy.rollout.simulated.prefill_us_per_token": 50}) - step_s(job, {}) == pytest.approx(0.005)


def test_length(job: Config) -> None:
    assert set(lengths(job, {"argosy.rollout.simulated.length": "fixed"})) == {64}
    uniform = lengths(job, {"argosy.rollout.simulated.length": "uniform"})
    assert (min(uniform) >= 48, max(uniform) <= 80, len(set(uniform)) > 20) == (True, True, True)


def test_length_mean(job: Config) -> None:
    for length in ("geometric", "lognormal", "uniform"):
        found = lengths(job, {"argosy.rollout.simulated.length": length, "argosy.rollout.simulated.length_mean": 100})
        assert sum(found) / len(found) == pytest.approx(100, rel=0.12)


def test_length_spread(job: Config) -> None:
    wide = {"argosy.rollout.simulated.length": "lognormal", "argosy.rollout.simulated.length_mean": 100}

    def deviation(spread: float) -> float:
        found = lengths(job, {**wide, "argosy.rollout.simulated.length_spread": spread})
        mean = sum(found) / len(found)
        return float((sum((length - mean) ** 2 for length in found) / len(found)) ** 0.5)

    assert deviation(10) == pytest.approx(10, rel=0.15)
    assert deviation(40) == pytest.approx(40, rel=0.25)


def test_failure(job: Config) -> None:
    assert options(job, {"argosy.rollout.simulated.failure": "hang"}).failure == "hang"
    assert "argosy.rollout.simulated.failure: got 'boom'" in problems(
        job.with_values({"argosy.rollout.simulated.failure": "boom"})
    )


def test_failure_after(job: Config) -> None:
    assert options(job, {"argosy.rollout.simulated.failure_after": 7}).failure_after == 7


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


def sglang_arguments(job: Config, values: Values) -> list[str]:
    from argosy.rollout.engines.folder import ModelFolder
    from argosy.rollout.engines.sglang import options_of as sglang_options
    from argosy.rollout.engines.sglang.command import server_arguments
    from argosy.rollout.engines.sglang.facts import facts_of

    chosen = sglang_options(job.with_values(dict(values)))
    facts = facts_of(ModelFolder(chosen.model_path), chosen)
    return server_arguments(chosen, facts, 1234, "v", on_cpu=True)


def after(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_sglang_kv_tokens(job: Config) -> None:
    """By itself room for all slots at their longest, on a CPU."""
    assert after(sglang_arguments(job, {}), "--max-total-tokens") == str(8 * (72 + 8))
    assert after(sglang_arguments(job, {"argosy.rollout.sglang.kv_tokens": 5000}), "--max-total-tokens") == "5000"


def test_sglang_filter_tokens(job: Config) -> None:
    assert after(sglang_arguments(job, {}), "--sampling-mask-max-tokens") == "259"
    assert (
        after(sglang_arguments(job, {"argosy.rollout.sglang.filter_tokens": 64}), "--sampling-mask-max-tokens") == "64"
    )
    limited = job.with_values({
        "actor_rollout_ref.rollout.name": "sglang", "argosy.rollout.sglang.filter_tokens": 64,
        "actor_rollout_ref.rollout.top_p": 0.9,
    })  # fmt: skip
    assert "actor_rollout_ref.rollout.top_p: got 0.9 with argosy.rollout.sglang.filter_tokens=64" in problems(limited)
    assert problems(limited.with_values({"actor_rollout_ref.rollout.top_k": 50})) == ""
    assert problems(limited.with_values({"argosy.rollout.sglang.filter_tokens": 0})) == ""


def test_sglang_arguments(job: Config) -> None:
    assert sglang_arguments(job, {"argosy.rollout.sglang.arguments": ["--tp-size", "2"]})[-2:] == ["--tp-size", "2"]
