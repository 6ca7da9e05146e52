"""Bit-for-bit repeatability, whatever the order or timing in which requests come."""

from __future__ import annotations

import asyncio

from unit.rollout.support import Open, answers, request


async def test_a_call_repeats_bit_for_bit_whatever_else_asks(open_rollout: Open) -> None:
    train = [request(k, p, max_tokens=5 + 4 * k) for p in range(3) for k in range(4)]
    val = [request(k, p, purpose="val", max_tokens=30) for p in range(2) for k in range(3)]
    first = await answers(await open_rollout(deterministic=True, slot_count=5), train)
    rollout = await open_rollout(deterministic=True, slot_count=5)
    # Another call is under way, and the requests come in another order.
    others = asyncio.create_task(answers(rollout, val))
    await asyncio.sleep(0.01)
    second = await answers(rollout, train[::-1])
    await others
    assert [(c.token_ids, c.log_probs) for c in first] == [(c.token_ids, c.log_probs) for c in second[::-1]]
    assert [c.cached_prompt_tokens for c in first] == [c.cached_prompt_tokens for c in second[::-1]]


async def test_calls_wait_for_each_other(open_rollout: Open) -> None:
    rollout = await open_rollout(deterministic=True)
    long = asyncio.create_task(answers(rollout, [request(0, max_tokens=200)]))
    await asyncio.sleep(0.01)
    short = asyncio.create_task(answers(rollout, [request(1, max_tokens=2)]))
    await asyncio.wait({long, short}, return_when=asyncio.FIRST_COMPLETED)
    assert long.done()
    await short


async def test_a_kept_prefix_makes_no_difference(open_rollout: Open) -> None:
    """A prompt computed in company and one computed alone may differ in the last bit: so nothing is kept over calls."""
    rollout = await open_rollout(deterministic=True)
    await answers(rollout, [request(0, p, max_tokens=2) for p in range(3)])
    assert [c.cached_prompt_tokens for c in await answers(rollout, [request(9)])] == [0]
