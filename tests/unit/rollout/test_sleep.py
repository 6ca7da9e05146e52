"""A sleeping server gives memory back to the system, and answers as before when it is awake and current."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.core import HfRollout
from argosy.types.errors import InvalidInputError, StateError
from unit.rollout.support import CTX, Open, answers, loop_of, request, until_sampled
from unit.rollout.test_weight_updates import snapshot_of, sync

SLOTS, LONG = 64, 180
MIB = 2**20


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of about 50 MB, and 16 KB of keys and values for each token."""
    return save_tiny_model(
        tmp_path_factory.mktemp("wide"), hidden_size=512, layer_count=4, head_count=8, kv_head_count=8, weight_scale=3.0
    )


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def weight_bytes(rollout: HfRollout) -> int:
    parameters = loop_of(rollout).runner.model.module.parameters()
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


@pytest.mark.parametrize("level", [1, 2])
async def test_memory_falls_and_answers_stay(open_rollout: Open, wide: Path, level: int) -> None:
    rollout = await open_rollout(wide, slot_count=SLOTS, start_stale=True)
    source = snapshot_of(wide)
    await sync(rollout, source)
    asked = [request(k, prompt=range(20, 20 + LONG)) for k in range(2)]
    before = await answers(rollout, asked)
    weights, staged = weight_bytes(rollout), sum(spec.size_bytes for spec in source.manifest.tensors)
    cache = loop_of(rollout).runner.slots.data.nbytes
    assert cache > 150 * MIB
    awake = resident()
    await rollout.sleep(level, CTX)
    freed = awake - resident()
    expected = cache + staged + (weights if level == 2 else 0)
    assert freed > 0.85 * expected  # it may be more: what earlier work of this process left to the allocator goes too
    assert (await rollout.status()).state == "asleep"
    with pytest.raises(StateError):
        await answers(rollout, asked)
    with pytest.raises(StateError, match="wake it"):
        await sync(rollout, source, "too early")
    await rollout.wake(CTX)
    if level == 2:
        assert (await rollout.status()).state == "stale"
        with pytest.raises(StateError):
            await answers(rollout, asked)
        await sync(rollout, source, "again")
    assert (await rollout.status()).state == "ready"
    after = await answers(rollout, asked)
    assert [one.token_ids for one in after] == [one.token_ids for one in before]
    assert [one.log_probs for one in after] == [pytest.approx(one.log_probs, abs=1e-5) for one in before]


async def test_sleep_twice_is_once_and_needs_quiet(open_rollout: Open) -> None:
    rollout = await open_rollout()
    with pytest.raises(InvalidInputError, match="level 3"):
        await rollout.sleep(3, CTX)
    await rollout.wake(CTX)
    work = asyncio.create_task(answers(rollout, [request(max_tokens=200)]))
    await until_sampled(rollout)
    with pytest.raises(StateError, match="in flight"):
        await rollout.sleep(1, CTX)
    await rollout.abort(None, CTX)
    await work
    for _ in range(2):
        await rollout.sleep(1, CTX)
    for _ in range(2):
        await rollout.wake(CTX)
    assert len(await answers(rollout, [request()])) == 1
