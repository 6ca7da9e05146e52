"""Random traffic: whatever joins, leaves, pauses and aborts in between, each sample's tokens are its own."""

from __future__ import annotations

import asyncio
import random

import pytest

from argosy.types.records import Completion, FinishReason, GenerateRequest
from unit.rollout.support import CTX, PROMPT, Open, answers, request


@pytest.fixture(params=[False, True], ids=["own-code", "compiled"])
def native(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def traffic(draw: random.Random) -> list[GenerateRequest]:
    return [
        request(
            k,
            p,
            PROMPT[: draw.randint(1, 25)] if p else PROMPT,
            max_tokens=draw.choice([1, 2, 7, 30]),
            temperature=draw.choice([0.0, 0.8, 1.0]),
            top_k=draw.choice([-1, 20]),
            repetition_penalty=draw.choice([1.0, 1.2]),
            ignore_eos=draw.random() < 0.5,
        )
        for p in range(4)
        for k in range(4)
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_tokens_do_not_depend_on_the_traffic(open_rollout: Open, seed: int) -> None:
    draw = random.Random(seed)
    requests = traffic(draw)
    quiet = await open_rollout(slot_count=1)
    expected = {one.key: (await answers(quiet, [one]))[0] for one in requests}
    rollout = await open_rollout(
        slot_count=draw.randint(1, 9), prefill_token_budget=draw.choice([1, 30, 4096]), prefix_token_budget=40
    )
    draw.shuffle(requests)

    async def ask(part: list[GenerateRequest]) -> list[Completion]:
        await asyncio.sleep(draw.random() * 0.05)
        return await answers(rollout, part)

    async def disturb() -> None:
        for _ in range(4):
            await asyncio.sleep(draw.random() * 0.02)
            await rollout.abort([draw.choice(requests).key], CTX)
            await rollout.pause("keep", CTX)
            await asyncio.sleep(draw.random() * 0.01)
            await rollout.resume(CTX)

    parts = [requests[i : i + 3] for i in range(0, len(requests), 3)]
    *found, _ = await asyncio.gather(*map(ask, parts), disturb())
    for done in [one for part in found for one in part or []]:
        whole = expected[f"{done.purpose}:{done.sample_id}"]
        assert done.token_ids == whole.token_ids[: len(done.token_ids)]
        assert done.log_probs == pytest.approx(whole.log_probs[: len(done.token_ids)], abs=5e-5)
        if done.finish_reason is not FinishReason.ABORTED:
            assert (done.token_ids, done.finish_reason) == (whole.token_ids, whole.finish_reason)
    status = await rollout.status()
    assert status.running_count == status.waiting_count == 0
