"""Requests, answers, and the plain model's word on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from argosy.rollout.core import HfRollout
from argosy.rollout.engines.base import Engine
from argosy.rollout.engines.events import Event
from argosy.rollout.engines.hf.adapter import HfEngine
from argosy.rollout.engines.hf.engine import Engine as Loop
from argosy.types.ids import SampleId
from argosy.types.records import Completion, GenerateRequest, Mutation, SamplingParams

PROMPT = tuple(range(20, 45))
E = TypeVar("E", bound=Engine)
CTX = Mutation(run_id="run", term=1, request_id="r", deadline_s=60.0)


class Open(Protocol):
    """Makes an engine over a model folder (the tiny one), with options."""

    async def __call__(self, path: Path | None = None, **options: Any) -> HfRollout: ...


def request(
    k: int = 0,
    position: int = 0,
    prompt: Sequence[int] = PROMPT,
    *,
    purpose: str = "train",
    **params: Any,
) -> GenerateRequest:
    settings = replace(SamplingParams(max_tokens=12, ignore_eos=True, seed=7), **params)
    return GenerateRequest(SampleId(0, position, k), tuple(prompt), settings, purpose=purpose)


class Told(Generic[E]):
    """An engine with what it told."""

    def __init__(self, engine: E) -> None:
        self.engine = engine
        self.events: list[Event] = []

    async def run(self, requests: Sequence[GenerateRequest], interval: int = 0) -> list[Completion]:
        await self.engine.submit(requests, self.events.append, interval)
        return await self.ends(requests)

    async def ends(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        async with asyncio.timeout(20):
            while True:
                found = {f"{e.purpose}:{e.sample_id}": e for e in self.events if isinstance(e, Completion)}
                if all(one.key in found for one in requests):
                    return [found[one.key] for one in requests]
                await asyncio.sleep(0.001)


def loop_of(rollout: HfRollout) -> Loop:
    """The embedded engine's own thread."""
    assert isinstance(rollout.engine, HfEngine)
    return rollout.engine.loop


async def until_sampled(rollout: HfRollout, token_count: int = 3, running_count: int = 1) -> None:
    """Wait until the engine is at work."""
    async with asyncio.timeout(30):
        while True:
            status = await rollout.status()
            if status.running_count >= running_count and status.generated_token_count >= token_count:
                return
            await asyncio.sleep(0.001)


async def answers(rollout: HfRollout, requests: Sequence[GenerateRequest]) -> list[Completion]:
    """Completions in the order of the requests."""
    found = {f"{c.purpose}:{c.sample_id}": c async for c in rollout.generate(requests, deadline_s=60)}
    assert len(found) == len(requests)
    return [found[request.key] for request in requests]


def plain_logits(path: Path, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """What the unchanged Hugging Face model says about each output token, [tokens, V] float32."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([[*prompt, *output]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]
