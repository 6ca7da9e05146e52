"""vLLM with its own LoRA: the adapter alone comes, and the weights under it stay. Run by `test_vllm.py`."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from torch import Tensor

from argosy.rollout.engines.base import TakesAdapters
from argosy.rollout.engines.vllm.lora import VllmLoraEngine
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.rollout.engines.vllm.weights import WorkerWeights
from argosy.text.tokenizer import load_tokenizer
from argosy.types.errors import InvalidInputError
from argosy.types.ids import PolicyVersion
from argosy.types.records import AdapterSpec, VersionRun
from argosy.weightsync.adapter import A_SUFFIX, B_SUFFIX, merge
from integration.vllm_programs.inside import MAX_LEN, PARAMS, Asked, Weights, ask, folder, other_weights, request_of

__all__ = ["folder"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

RANK = 4
MODULES = tuple(
    f"model.layers.{layer}.{name}" for layer in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj", "mlp.up_proj")
)
"""Parts of what vLLM fuses, and a whole one."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(folder: Path) -> AsyncIterator[VllmLoraEngine]:
    options = VllmOptions(str(folder), threads=1, slot_count=8, max_model_len=MAX_LEN, lora_rank=RANK)
    made = VllmLoraEngine(options, load_tokenizer(str(folder)).decode)
    await made.start()
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def only_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """New weights are made ready beside those in use, also with vLLM's LoRA around its layers."""

    async def refuse(*args: object) -> None:
        raise AssertionError("weights were loaded in place")

    monkeypatch.setattr(WorkerWeights, "_load_in_place", refuse)


def adapted(base: Weights, step: int, rank: int = RANK) -> tuple[AdapterSpec, dict[str, Tensor], Weights]:
    """An adapter on some weights: (what is sent, and the weights with it merged in)."""
    generator = torch.Generator().manual_seed(step)
    spec = AdapterSpec(base.version, rank, 2.0 * rank, MODULES)
    tensors = {}
    for module in MODULES:
        rows, columns = base.sent[f"{module}.weight"].shape
        tensors[module + A_SUFFIX] = torch.randn(rank, columns, generator=generator) * 0.1
        tensors[module + B_SUFFIX] = torch.randn(rows, rank, generator=generator) * 0.1
    model = copy.deepcopy(base.model)
    model.load_state_dict(dict(base.sent) | merge(spec, tensors, base.sent), strict=False)
    return spec, tensors, Weights(PolicyVersion("main", step, f"{step}" * 64), model)


async def check(engine: VllmLoraEngine, weights: Weights) -> tuple[int, ...]:
    """Samples are of these weights; the tokens of one."""
    (answer,) = await ask(engine, [request_of(0)])
    assert answer.versions == (VersionRun(weights.version, PARAMS.max_tokens),)
    assert answer.cached_prompt_tokens == 0
    expected = weights.log_probs(request_of(0).prompt_ids, answer.token_ids)
    assert torch.tensor(answer.log_probs).sub(expected).abs().max() < 1e-4
    return answer.token_ids


async def test_an_adapter_samples_as_if_it_were_merged_and_goes_with_whole_weights(
    engine: VllmLoraEngine, folder: Path
) -> None:
    assert isinstance(engine, TakesAdapters)
    base = other_weights(folder, 1)
    await engine.swap_weights(base.sent, base.version)
    plain = await check(engine, base)
    for step in (2, 3):
        spec, tensors, merged = adapted(base, step)
        await engine.swap_adapter(spec, tensors, merged.version)
        assert await check(engine, merged) != plain
    held = await engine.held_state()
    assert all(torch.equal(held[name], tensor) for name, tensor in base.sent.items())
    again = Weights(PolicyVersion("main", 4, "4" * 64), base.model)
    await engine.swap_weights(again.sent, again.version)
    assert await check(engine, again) == plain


async def test_a_sample_in_flight_goes_on_with_the_new_adapter(engine: VllmLoraEngine, folder: Path) -> None:
    base = other_weights(folder, 5)
    await engine.swap_weights(base.sent, base.version)
    asked, request = Asked(), request_of(3, replace(PARAMS, max_tokens=300))
    await engine.submit([request], asked.deliver, 8)
    await asked.next_run()
    spec, tensors, merged = adapted(base, 6)
    await engine.swap_adapter(spec, tensors, merged.version)
    (answer,) = await asked.answers(1)
    assert [run.version for run in answer.versions] == [base.version, merged.version]
    at = answer.versions[0].token_count
    before = base.log_probs(request.prompt_ids, answer.token_ids)[:at]
    after = merged.log_probs(request.prompt_ids, answer.token_ids)[at:]
    assert torch.tensor(answer.log_probs).sub(torch.cat([before, after])).abs().max() < 1e-4


async def test_d10_an_adapter_that_is_too_large_is_refused_and_changes_nothing(
    engine: VllmLoraEngine, folder: Path
) -> None:
    base = other_weights(folder, 7)
    await engine.swap_weights(base.sent, base.version)
    spec, tensors, merged = adapted(base, 8, rank=2 * RANK)
    with pytest.raises(InvalidInputError, match="has rank 8, and vLLM was started for at most 4"):
        await engine.swap_adapter(spec, tensors, merged.version)
    await check(engine, base)
