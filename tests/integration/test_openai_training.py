"""A run that is driven by an agent outside: the real `openai` client, a loop of two turns, and a reward that rises."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI

from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("train")

GOOD = set("abcdefghijklm")
STEPS = 8


async def address_of(folder: Path, timeout_s: float = 120) -> str:
    deadline = time.monotonic() + timeout_s
    while not (folder / "openai.json").exists():
        assert time.monotonic() < deadline, "the endpoint did not come up"
        await asyncio.sleep(0.1)
    return str(json.loads((folder / "openai.json").read_text())["base_url"]).removesuffix("/v1")


async def agent(address: str, http: httpx.AsyncClient, base: AsyncOpenAI, done: list[float]) -> None:
    """Answers rows in two turns until the run wants no more."""
    while True:
        taken = await http.post(f"{address}/v1/tasks/next?wait_s=5")
        if taken.status_code == 204:
            continue
        if taken.status_code == 410:
            return
        seat = taken.json()
        client = base.with_options(base_url=seat["base_url"])
        messages: list[Any] = seat["task"]["messages"]
        said = ""
        for follow in ("more", None):
            reply = await client.chat.completions.create(model="policy", messages=messages, max_tokens=6)
            said += reply.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": follow})
        share = sum(letter in GOOD for letter in said) / max(len(said), 1)
        await http.post(f"{address}/v1/sessions/{seat['id']}/reward", json={"reward": share})
        done.append(share)


async def drive(folder: Path, workers: int) -> list[float]:
    address = await address_of(folder)
    done: list[float] = []
    limits = httpx.Limits(max_connections=workers + 8, max_keepalive_connections=workers + 8)

    base = AsyncOpenAI(base_url=address, api_key="none")

    async def until_over(http: httpx.AsyncClient) -> None:
        try:
            await agent(address, http, base, done)
        except (httpx.TransportError, APIConnectionError, APIStatusError):
            return  # the run has ended

    async with httpx.AsyncClient(timeout=120, limits=limits, verify=False) as http, asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(until_over(http))
    await base.close()
    return done


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_agent_outside_trains_the_policy(toy_job: ToyJob, staleness: int) -> None:
    """Synchronous, and with one step of staleness; every session of every trained group is in the books."""
    run = f"agents-{staleness}"
    process = toy_job.start(
        run,
        "argosy.openai.enable=true",
        "argosy.openai.source=sessions",
        f"argosy.max_staleness={staleness}",
        "argosy.deterministic=false",
        "argosy.placement=inprocess",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "data.max_response_length=64",
        f"trainer.total_training_steps={STEPS}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
    )
    try:
        done = asyncio.run(asyncio.wait_for(drive(toy_job.folder / run, 32), 240))
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    rows = toy_job.metrics(run)
    rewards = [row["critic/score/mean"] for row in rows]
    assert len(rewards) == STEPS
    assert max(rewards[-2:]) > 2 * max(rewards[:2]), rewards
    assert len(done) >= STEPS * 32
    assert {row["num_turns/mean"] for row in rows} == {4.0}
    assert all(row["openai/finished_groups"] >= 4 * (i + 1) for i, row in enumerate(rows))
    assert not (toy_job.folder / run / "openai.json").exists()
