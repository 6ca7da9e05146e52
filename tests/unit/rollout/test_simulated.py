"""The simulated engine: a pure function of its request, honest probabilities, and time that passes as configured."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argosy.rollout.engines.folder import ModelFolder
from argosy.rollout.engines.simulated.engine import CAPABILITIES, SimulatedEngine
from argosy.rollout.engines.simulated.language import RANKS, Language
from argosy.rollout.engines.simulated.lengths import hazard_of
from argosy.rollout.engines.simulated.options import LENGTHS, SimulatedOptions
from argosy.types.errors import InvalidInputError, OverloadedError, StateError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, TokenRun
from argosy.weightsync import build_manifest, find_tied
from argosy.weightsync.transports import TRANSPORTS
from unit.rollout.support import Told, request

V1, V2 = PolicyVersion("main", 1, "1" * 64), PolicyVersion("main", 2, "2" * 64)
LANGUAGE = Language(300, {2, 9}, hazard_of("geometric", 10, 0, 1000))


def words(one: GenerateRequest, version: PolicyVersion = V1, start: int = 0) -> list[int]:
    return LANGUAGE.write(one, version, start, one.params.max_tokens).token_ids


def test_each_part_of_the_key_counts_and_nothing_else() -> None:
    one = request(max_tokens=40)
    assert words(one) == words(replace(one, prompt_ids=(9, 8, 7)))
    others = [
        replace(one, params=replace(one.params, seed=8)),
        replace(one, purpose="val"),
        replace(one, sample_id=SampleId(0, 0, 1)),
        replace(one, sample_id=SampleId(0, 0, 0, attempt=1)),
    ]
    assert all(words(other) != words(one) for other in others)
    assert words(one, V2) != words(one)
    assert words(one, replace(V1, lineage="b", step=7)) == words(one), "equal digests are equal weights"
    assert words(one)[13:] == words(one, start=13)


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.8}],
)
def test_frequencies_are_those_that_the_log_probs_say(params: dict[str, Any]) -> None:
    """Over many samples, the first token of a group comes as often as its probability says."""
    count = 3_000
    base = request(ignore_eos=True, max_tokens=1, **params)
    seen: Counter[int] = Counter()
    told: dict[int, float] = {}
    for k in range(count):
        text = LANGUAGE.write(replace(base, sample_id=SampleId(0, 0, k)), V1, 0, 1)
        seen[text.token_ids[0]] += 1
        told[text.token_ids[0]] = math.exp(text.log_probs[0])
    assert sum(told.values()) == pytest.approx(1, abs=0.06)
    for token, probability in told.items():
        assert seen[token] / count == pytest.approx(probability, abs=4 * math.sqrt(probability / count) + 1e-3)


def test_end_tokens_come_with_the_hazard_as_their_log_prob() -> None:
    texts = [LANGUAGE.write(request(k, max_tokens=200, ignore_eos=False), V1, 0, 200) for k in range(2000)]
    assert all(text.token_ids[-1] == 2 for text in texts if len(text.token_ids) < 200)
    assert {round(text.log_probs[-1], 6) for text in texts if text.token_ids[-1] == 2} == {round(math.log(0.1), 6)}
    assert sum(len(text.token_ids) for text in texts) / 2000 == pytest.approx(10, rel=0.08)


def test_stop_ids_before_min_tokens_are_never_sampled_and_the_rest_is_renormalised() -> None:
    [greedy] = words(request(temperature=0.0, max_tokens=1))
    for k in range(300):
        one = request(k, max_tokens=1, min_tokens=1, stop_token_ids=(greedy, 5, 6))
        text = LANGUAGE.write(one, V1, 0, 1)
        assert text.token_ids[0] not in (greedy, 5, 6)
        free = LANGUAGE.write(request(k, max_tokens=1), V1, 0, 1)
        if free.token_ids == text.token_ids:
            assert text.log_probs[0] > free.log_probs[0]


@pytest.mark.parametrize("length", LENGTHS)
def test_hazards_are_probabilities_with_the_wanted_mean(length: str) -> None:
    hazard = hazard_of(length, 50, 15, 2000)
    assert hazard.min() >= 0
    assert hazard.max() <= 1
    alive = np.cumprod(np.concatenate([[1.0], 1 - hazard]))
    assert alive[:-1].sum() == pytest.approx(50, rel=0.02)


def test_few_words_are_enough() -> None:
    language = Language(5, {2}, hazard_of("fixed", 3, 0, 10))
    text = language.write(request(max_tokens=8, ignore_eos=False), V1, 0, 8)
    assert len(text.token_ids) == 3
    assert RANKS > 4


def test_the_folder_tells_what_the_model_is(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = ModelFolder(tiny)
    state = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).state_dict()
    tied = find_tied(state)
    assert folder.tied == tied
    assert {name: shape.shape for name, shape in folder.shapes.items()} == {
        name: tuple(tensor.shape) for name, tensor in state.items() if name not in tied
    }
    owned = {spec.name: spec for spec in build_manifest("main", 0, state, tied).tensors if not spec.tied_to}
    assert {spec.name: spec for spec in folder.specs()} == owned
    assert (folder.vocab_size, folder.context_len, folder.eos_token_ids) == (259, 1024, frozenset({2}))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"config\.json is missing"):
        ModelFolder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="no safetensors files"):
        ModelFolder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(InvalidInputError, match="not a safetensors file"):
        ModelFolder(tmp_path)


@pytest.mark.parametrize(
    ("values", "field"),
    [({"length": "weibull"}, "length"), ({"failure": "boom"}, "failure"), ({"decode_ms": -1}, "decode_ms"),
     ({"slot_count": 0}, "slot_count"), ({"length_mean": float("nan")}, "length_mean")],
)  # fmt: skip
def test_wrong_options_are_refused_by_name(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        SimulatedOptions("model", **values)


async def make(path: Path, **values: Any) -> Told[SimulatedEngine]:
    engine = SimulatedEngine(SimulatedOptions(str(path), **values), lambda ids: " ".join(map(str, ids)))
    await engine.start()
    return Told(engine)


async def test_steps_take_the_time_that_is_configured(tiny: Path) -> None:
    """2 samples of 20 tokens: 20 steps of 5 + 2 × 1 ms, and 25 prompt tokens once of 400 µs (the second has them)."""
    found = await make(tiny, decode_ms=5, decode_ms_per_sample=1, prefill_us_per_token=400)
    started = time.monotonic()
    answers = await found.run([request(k, max_tokens=20) for k in range(2)])
    assert 0.15 <= time.monotonic() - started < 5  # a hang guard
    assert sorted(c.cached_prompt_tokens for c in answers) == [0, 24]
    counts = found.engine.counts()
    assert (counts.generated_token_count, counts.prompt_token_count, counts.prompt_cached_token_count) == (40, 50, 24)
    await found.engine.close()


async def test_slots_priorities_and_room(tiny: Path) -> None:
    found = await make(tiny, slot_count=1, max_waiting=3, decode_ms=1)
    low = [request(k, max_tokens=3) for k in range(3)]
    high = replace(request(9, max_tokens=3), priority=5)
    await found.engine.submit(low, found.events.append, 0)
    await asyncio.sleep(0)
    await found.engine.submit([high], found.events.append, 0)
    with pytest.raises(OverloadedError):
        await found.engine.submit([request(7)], found.events.append, 0)
    await found.ends([*low, high])
    order = [e.sample_id.k for e in found.events if isinstance(e, Completion)]
    assert order.index(9) <= 1
    await found.engine.close()


async def test_runs_put_together_are_the_completion(tiny: Path) -> None:
    found = await make(tiny, decode_ms=0.1)
    [done] = await found.run([request(max_tokens=50)], interval=7)
    runs = [e for e in found.events if isinstance(e, TokenRun)]
    assert [run.offset for run in runs] == [0, 7, 14, 21, 28, 35, 42]
    assert [token for run in runs for token in run.token_ids] == list(done.token_ids[:49])
    await found.engine.close()


async def test_an_update_changes_what_is_still_to_come(tiny: Path) -> None:
    found = await make(tiny, decode_ms=2)
    one = request(max_tokens=60)
    await found.engine.submit([one], found.events.append, 4)
    await asyncio.sleep(0.03)
    first = found.engine.version
    await found.engine.swap_weights({}, V2)
    assert found.engine.counts().cached_token_count == 0
    [done] = await found.ends([one])
    assert [run.version for run in done.versions] == [first, V2]
    before = done.versions[0].token_count
    hazard = hazard_of("geometric", 64, 16, 1024)
    language = Language(259, {2}, hazard)
    assert list(done.token_ids[before:]) == language.write(one, V2, before, 60).token_ids
    runs = [e for e in found.events if isinstance(e, TokenRun)]
    spans = [version.version for run in runs for version in run.versions for _ in range(version.token_count)]
    assert spans == [first] * before + [V2] * (len(spans) - before)
    assert found.engine.counts().generated_token_count == 60
    await found.engine.close()


async def test_abort_pause_sleep_and_close(tiny: Path) -> None:
    found = await make(tiny, slot_count=2, decode_ms=2)
    asked = [request(k, max_tokens=500) for k in range(4)]
    await found.engine.submit(asked, found.events.append, 0)
    await asyncio.sleep(0.02)
    assert await found.engine.abort({asked[0].key, asked[3].key}) == 2
    ended = await found.ends([asked[0], asked[3]])
    assert [(c.finish_reason, len(c.token_ids) > 0) for c in ended] == [
        (FinishReason.ABORTED, True), (FinishReason.ABORTED, False)
    ]  # fmt: skip
    await found.engine.pause("keep")
    with pytest.raises(StateError, match="in flight"):
        await found.engine.sleep(1)
    await found.engine.pause("abort")
    assert found.engine.counts().running == found.engine.counts().waiting == 0
    await found.engine.sleep(2)
    with pytest.raises(StateError, match="asleep"):
        await found.engine.submit([request()], found.events.append, 0)
    await found.engine.wake()
    assert found.engine.version is None
    await found.engine.swap_weights({}, V1)
    await found.engine.resume()
    last = request(8, max_tokens=400)
    await found.engine.submit([last], found.events.append, 0)
    await asyncio.sleep(0.01)
    await found.engine.close()
    assert (await found.ends([last]))[0].finish_reason is FinishReason.ABORTED


def test_it_takes_every_transport() -> None:
    assert CAPABILITIES.transports <= {*TRANSPORTS}
