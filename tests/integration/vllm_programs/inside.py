"""The vLLM engine by itself, in one process with vLLM: run by `test_vllm.py` with the interpreter that has vLLM.

One engine serves the whole module, which saves its start; the last test kills it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.core import HfRollout, HfRolloutOptions
from argosy.rollout.engines.base import Engine
from argosy.rollout.engines.events import Event
from argosy.rollout.engines.vllm import weights as weights_module
from argosy.rollout.engines.vllm.engine import VllmEngine
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.rollout.engines.vllm.weights import WorkerWeights
from argosy.text.tokenizer import load_tokenizer
from argosy.types.errors import InternalError, InvalidInputError, NotFoundError, StateError, UnavailableError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import (
    Completion,
    FinishReason,
    Generated,
    GenerateRequest,
    SamplingParams,
    TokenRun,
    VersionRun,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_LEN = 512
HIDDEN_SIZE = 128
"""Heads of 32 numbers: vLLM's attention on CPUs knows no smaller ones."""
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True, seed=7)


def request_of(k: int, params: SamplingParams = PARAMS, prompt: str = "what is it", **more: Any) -> GenerateRequest:
    return GenerateRequest(SampleId(0, 0, k), tuple(3 + byte for byte in prompt.encode()), params, **more)


class Asked:
    """Requests in flight."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Event] = asyncio.Queue()
        self.runs: list[TokenRun] = []

    def deliver(self, event: Event) -> None:
        self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    async def next_run(self) -> TokenRun:
        event = await asyncio.wait_for(self.queue.get(), 60)
        assert isinstance(event, TokenRun)
        self.runs.append(event)
        return event

    async def answers(self, count: int) -> list[Completion]:
        found: list[Completion] = []
        while len(found) < count:
            event = await asyncio.wait_for(self.queue.get(), 60)
            if isinstance(event, TokenRun):
                self.runs.append(event)
            else:
                found.append(event)
        for one in found:
            assert len(one.token_ids) == len(one.log_probs) == sum(run.token_count for run in one.versions)
        return sorted(found, key=lambda one: one.sample_id)


async def ask(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Completion]:
    asked = Asked()
    await engine.submit(requests, asked.deliver, 0)
    return await asked.answers(len(requests))


@dataclass
class Weights:
    """A version, as a model of transformers."""

    version: PolicyVersion
    model: Any

    @property
    def sent(self) -> Mapping[str, Tensor]:
        state = self.model.state_dict()
        return {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}

    @torch.inference_mode()
    def log_probs(self, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams = PARAMS) -> Tensor:
        """Of each token, [len(answer)], under temperature and top-k."""
        logits = self.model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1] / params.temperature
        if params.top_k > 0:
            least = logits.topk(params.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        found: Tensor = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        return found


def other_weights(folder: Path, step: int) -> Weights:
    model = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * 0.5)
    return Weights(PolicyVersion("main", step, f"{step}" * 64), model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("vllm") / "tied", hidden_size=HIDDEN_SIZE, weight_scale=3.0)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(folder: Path) -> AsyncIterator[VllmEngine]:
    made = VllmEngine(
        VllmOptions(str(folder), threads=1, slot_count=16, max_model_len=MAX_LEN), load_tokenizer(str(folder)).decode
    )
    await made.start()
    yield made
    await made.close()


async def test_samples_draw_the_same_tokens_in_any_company_and_as_in_the_embedded_engine(
    engine: VllmEngine, folder: Path
) -> None:
    requests = [request_of(k) for k in range(8)]
    together = await ask(engine, requests)
    assert len({one.token_ids for one in together}) == 8
    alone = [(await ask(engine, [request]))[0] for request in requests[:2]]
    assert [one.token_ids for one in alone] == [one.token_ids for one in together[:2]]
    embedded = HfRollout(HfRolloutOptions(str(folder), max_model_len=MAX_LEN), load_tokenizer(str(folder)).decode)
    await embedded.start()
    same = sorted([one async for one in embedded.generate(requests, deadline_s=60)], key=lambda one: one.sample_id)
    await embedded.close()
    assert engine.version == same[0].versions[0].version
    for ours, theirs in zip(together, same, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)


async def test_a_partial_answer_goes_on_as_if_it_had_never_stopped(engine: VllmEngine) -> None:
    assert engine.version is not None
    (whole,) = await ask(engine, [request_of(0)])
    part = Generated(whole.token_ids[:7], whole.log_probs[:7], (VersionRun(engine.version, 7),))
    (resumed,) = await ask(engine, [request_of(0, generated=part)])
    assert resumed.token_ids == whole.token_ids
    assert resumed.log_probs == pytest.approx(whole.log_probs, abs=1e-5)
    (ended,) = await ask(engine, [request_of(0, replace(PARAMS, max_tokens=7), generated=part)])
    assert (ended.token_ids, ended.finish_reason) == (part.token_ids, FinishReason.LENGTH)


@pytest.mark.parametrize("beside", [True, False])
async def test_d1_d2_after_an_update_tied_head_and_prefix_cache_are_of_the_new_weights(
    engine: VllmEngine, folder: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Also where there is no memory for a second copy of the weights."""

    async def nothing(*args: object) -> None: ...

    monkeypatch.setattr(WorkerWeights, "_load_in_place" if beside else "prepare", nothing)
    prompt = "a prompt that fills more than one block of the cache " * 4
    params = replace(PARAMS, temperature=0.7, top_k=20)
    await ask(engine, [request_of(0, params, prompt)])
    (cached,) = await ask(engine, [request_of(1, params, prompt)])
    assert cached.cached_prompt_tokens >= 128
    weights = other_weights(folder, 1 if beside else 8)
    await engine.swap_weights(weights.sent, weights.version)
    fresh, *_ = await ask(engine, [request_of(1, params, prompt)])
    assert fresh.cached_prompt_tokens == 0
    assert fresh.versions == (VersionRun(weights.version, 20),)
    ids = request_of(1, params, prompt).prompt_ids
    expected = weights.log_probs(ids, fresh.token_ids, params)
    assert torch.tensor(fresh.log_probs).sub(expected).abs().max() < 1e-5
    held = await engine.held_state()
    assert all(torch.equal(held[name], tensor) for name, tensor in weights.sent.items())


async def test_a_sample_in_flight_goes_on_under_the_new_weights_and_says_from_where(
    engine: VllmEngine, folder: Path
) -> None:
    old, new = other_weights(folder, 2), other_weights(folder, 3)
    await engine.swap_weights(old.sent, old.version)
    asked, request = Asked(), request_of(3, replace(PARAMS, max_tokens=300))
    await engine.submit([request], asked.deliver, 8)
    await asked.next_run()
    await engine.swap_weights(new.sent, new.version)
    (answer,) = await asked.answers(1)
    assert [run.version for run in answer.versions] == [old.version, new.version]
    assert [token for run in asked.runs for token in run.token_ids] == list(answer.token_ids[: 300 - 300 % 8])
    at = answer.versions[0].token_count
    before = old.log_probs(request.prompt_ids, answer.token_ids)[:at]
    after = new.log_probs(request.prompt_ids, answer.token_ids)[at:]
    assert torch.tensor(answer.log_probs).sub(torch.cat([before, after])).abs().max() < 1e-4


async def test_samples_go_on_while_new_weights_are_made_ready(
    engine: VllmEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the pieces of that, of which a larger model has more than the two layers here."""
    monkeypatch.setattr(weights_module, "_TURN_S", (0.0, 0.0))
    weights, counts = other_weights(folder, 9), []
    tell_workers = engine._llm.collective_rpc

    async def noted(method: str, *args: Any, **options: Any) -> Any:
        if method == "argosy_advance":
            counts.append(engine.counts().generated_token_count)
        return await tell_workers(method, *args, **options)

    monkeypatch.setattr(engine._llm, "collective_rpc", noted)
    asked = Asked()
    await engine.submit([request_of(k, replace(PARAMS, max_tokens=300)) for k in range(2)], asked.deliver, 1)
    await asked.next_run()
    before = engine.version
    await engine.swap_weights(weights.sent, weights.version)
    for answer in await asked.answers(2):
        assert [run.version for run in answer.versions] == [before, weights.version]
    assert counts[-1] >= counts[0] + 6, "not even three steps"


async def test_d10_an_update_that_fails_half_way_leaves_it_stale_until_a_whole_one_comes(
    engine: VllmEngine, folder: Path
) -> None:
    weights = other_weights(folder, 4)
    broken = {**weights.sent, "model.layers.1.nonsense.weight": torch.ones(3)}
    asked = Asked()
    await engine.submit([request_of(0, replace(PARAMS, max_tokens=400))], asked.deliver, 0)
    with pytest.raises(InternalError, match="could not take version main@5"):
        await engine.swap_weights(broken, PolicyVersion("main", 5, "5" * 64))
    (failed,) = await asked.answers(1)
    assert failed.finish_reason is FinishReason.FAILED
    assert engine.version is None
    with pytest.raises(NotFoundError):
        await engine.held_state()
    missing = {name: tensor for name, tensor in weights.sent.items() if "layers.0.self_attn.o_proj" not in name}
    with pytest.raises(StateError, match="no current weights"):
        await engine.swap_weights(missing, PolicyVersion("main", 5, "5" * 64))
    await engine.swap_weights(weights.sent, weights.version)
    (answer,) = await ask(engine, [request_of(0)])
    expected = weights.log_probs(request_of(0).prompt_ids, answer.token_ids)
    assert torch.tensor(answer.log_probs).sub(expected).abs().max() < 1e-5


async def test_some_weights_alone_replace_those_and_leave_the_others(engine: VllmEngine, folder: Path) -> None:
    """As when a LoRA adapter is merged into the modules that it has."""
    weights = other_weights(folder, 6)
    await engine.swap_weights(weights.sent, weights.version)
    changed = [name for name in weights.sent if name.endswith(("q_proj.weight", "down_proj.weight"))]
    with torch.no_grad():
        for name in changed:
            weights.model.get_parameter(name).mul_(1.5)
    version = PolicyVersion("main", 7, "7" * 64)
    await engine.swap_weights({name: weights.sent[name] for name in changed}, version)
    (answer,) = await ask(engine, [request_of(0)])
    assert answer.versions == (VersionRun(version, 20),)
    expected = weights.log_probs(request_of(0).prompt_ids, answer.token_ids)
    assert torch.tensor(answer.log_probs).sub(expected).abs().max() < 1e-5
    held = await engine.held_state()
    assert all(torch.equal(held[name], tensor) for name, tensor in weights.sent.items())


async def test_pause_holds_and_sleep_frees_without_changing_what_is_drawn(engine: VllmEngine) -> None:
    (before,) = await ask(engine, [request_of(5)])
    await engine.pause("keep")
    asked = Asked()
    await engine.submit([request_of(5)], asked.deliver, 0)
    await asyncio.sleep(0.3)
    assert asked.queue.empty()
    assert (engine.counts().running, engine.counts().waiting) == (0, 1)
    with pytest.raises(StateError, match="1 samples are in flight"):
        await engine.sleep(1)
    await engine.resume()
    assert (await asked.answers(1))[0].token_ids == before.token_ids
    used = sum(process.memory_info().rss for process in psutil.Process().children(recursive=True))
    await engine.sleep(1)
    asleep = sum(process.memory_info().rss for process in psutil.Process().children(recursive=True))
    assert asleep < used
    await engine.wake()
    assert (await ask(engine, [request_of(5)]))[0].token_ids == before.token_ids


async def test_abort_ends_now_with_what_there_is(engine: VllmEngine) -> None:
    asked, long = Asked(), replace(PARAMS, max_tokens=400)
    await engine.submit([request_of(k, long) for k in range(3)], asked.deliver, 4)
    await asked.next_run()
    assert await engine.abort({request_of(1).key}) == 1
    (one,) = await asked.answers(1)
    assert (one.sample_id.k, one.finish_reason) == (1, FinishReason.ABORTED)
    await engine.pause("abort")
    rest = await asked.answers(2)
    assert {one.finish_reason for one in rest} == {FinishReason.ABORTED}
    assert all(0 < len(one.token_ids) < 400 for one in rest)
    await engine.resume()
    (whole,) = await ask(engine, [request_of(0)])
    count = min(20, len(rest[0].token_ids))
    assert whole.token_ids[:count] == rest[0].token_ids[:count]


async def test_urgent_samples_go_first(engine: VllmEngine) -> None:
    await engine.pause("keep")
    asked = Asked()
    await engine.submit([request_of(k, replace(PARAMS, max_tokens=100)) for k in range(40)], asked.deliver, 0)
    await engine.submit([request_of(40, priority=5)], asked.deliver, 0)
    await asyncio.sleep(0.2)
    await engine.resume()
    first = await asyncio.wait_for(asked.queue.get(), 60)
    assert first.sample_id.k == 40
    await asked.answers(40)


async def test_what_vllm_would_change_in_silence_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(InvalidInputError, match=r"temperature 0\.005 is below 0\.01"):
        await ask(engine, [request_of(0, replace(PARAMS, temperature=0.005))])
    with pytest.raises(InvalidInputError, match="level 2"):
        await engine.sleep(2)


async def test_counts_tell_of_prompts_and_cache(engine: VllmEngine) -> None:
    before = engine.counts()
    prompt = "counted, and longer than one block of the cache is, which takes a few words more than one thinks " * 2
    await ask(engine, [request_of(0, prompt=prompt)])
    await ask(engine, [request_of(1, prompt=prompt)])
    after = engine.counts()
    assert after.generated_token_count - before.generated_token_count == 40
    assert after.prompt_token_count - before.prompt_token_count == 2 * len(prompt)
    assert after.prompt_cached_token_count - before.prompt_cached_token_count == 128
    assert after.kv_total_tokens >= 16 * MAX_LEN
    assert (after.running, after.waiting, after.kv_used_tokens) == (0, 0, 0)


async def test_d6_a_dead_process_of_vllm_fails_its_samples_and_the_engine(engine: VllmEngine) -> None:
    asked = Asked()
    await engine.submit([request_of(0, replace(PARAMS, max_tokens=400))], asked.deliver, 4)
    await asked.next_run()
    for process in psutil.Process().children(recursive=True):
        if "resource_tracker" not in " ".join(process.cmdline()):
            process.kill()
    (failed,) = await asked.answers(1)
    assert failed.finish_reason is FinishReason.FAILED
    assert isinstance(await asyncio.to_thread(engine.failed.result, 10), UnavailableError)
    assert engine.version is None
    with pytest.raises(UnavailableError):
        await ask(engine, [request_of(0)])
