"""What takes long with many samples leaves the event loop free, for answers, heartbeats and the next groups."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.config import Config
from argosy.controller import staleness
from argosy.controller.context import RunContext, Services
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.garbage import AT_EASE, AT_LAST, own_collections
from argosy.controller.groups import FinishedGroup, Ticket
from argosy.controller.ledger import Ledger
from argosy.controller.ledger import closing as closing_module
from argosy.controller.stages import assemble
from argosy.controller.stages.rollout import assign_groups
from argosy.controller.stream_source import PromptGroups
from argosy.membership.memory import MemoryMembership
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, GenerateRequest, Prompt, SamplingParams
from unit.config.effects.recorded import run_recorded
from unit.controller.test_stream import settled, step_of, streaming

HANG_S = 30


@pytest.mark.parametrize("where", [(assemble, "build"), (assemble, "finish"), (closing_module, "write_segment")])
@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_the_loop_turns_while_a_step_is_made_and_closed(
    small_job: Config, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], max_staleness: int
) -> None:
    """Each waits until the event loop has turned, which it can't while it waits itself."""
    module, name = where
    real, loop, waited = getattr(module, name), asyncio.get_running_loop(), []

    def waiting(*args: Any) -> Any:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        waited.append(turned.wait(HANG_S))
        return real(*args)

    monkeypatch.setattr(module, name, waiting)
    job = small_job.with_values({"argosy.max_staleness": max_staleness, "trainer.total_training_steps": 2})
    recorded = await run_recorded(job, monkeypatch)
    assert waited == [True, True]
    assert [len(batch) for batch in recorded.batches] == [16, 16]


async def test_no_full_collection_comes_in_the_middle_of_a_step(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young one finds the cycles of a step; a full one comes at its end, and leaves out what was there before."""
    frozen: list[int] = []
    full: list[int] = []
    before, real = gc.get_threshold(), assemble.build

    def busy(*args: Any) -> Any:
        frozen.append(gc.get_freeze_count())
        seen = len(full)
        kept = [[] for _ in range(200_000)]  # type: ignore[var-annotated]
        assert kept
        assert len(full) == seen
        return real(*args)

    def count(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(len(frozen))

    monkeypatch.setattr(assemble, "build", busy)
    gc.callbacks.append(count)
    try:
        await run_recorded(small_job.with_values({"trainer.total_training_steps": 2}), monkeypatch)
    finally:
        gc.callbacks.remove(count)
    assert [place for place in full if place] == [1, 2]
    assert frozen[0] > 10_000, "Python's own modules alone are more"
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before), "a process may live on after its run"


def test_full_collections_wait_while_many_samples_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: full.append(1))
    with own_collections() as outer, own_collections() as inner:
        assert gc.get_threshold()[2] > 10**6
        for _ in range(AT_LAST - 1):
            inner.step_done(AT_EASE + 1)
        assert not full
        inner.step_done(AT_EASE + 1)
        assert len(full) == 1
        outer.step_done(AT_EASE)
        assert len(full) == 2
    assert gc.get_threshold()[2] < 10**6


class Forever:
    """Answers nothing."""

    def of(self, prompts: Sequence[Prompt]) -> Forever:
        return self

    async def generate(self, requests: Sequence[GenerateRequest], sink: Any) -> None:
        raise NotImplementedError

    async def generate_one(self, request: GenerateRequest) -> Completion:
        await asyncio.Event().wait()
        raise AssertionError("nothing ends this")


class Wide:
    """Lets many groups in at once, and notes how often the event loop had turned by then."""

    def __init__(self, count: int, turns: Callable[[], int]) -> None:
        self._left = count
        self._turns = turns
        self.seen: list[int] = []
        self.all_in = asyncio.Event()

    async def admit(self) -> Ticket:
        self._left -= 1
        if self._left < 0:
            self.all_in.set()
            await asyncio.Event().wait()
        self.seen.append(self._turns())
        return Ticket(len(self.seen), 0)

    def finish(self, ticket: Ticket, group: FinishedGroup) -> None:
        raise NotImplementedError

    def give_up(self, ticket: Ticket) -> None:
        raise NotImplementedError


class Prompts:
    """One after the other."""

    def __init__(self) -> None:
        self._positions: Iterator[int] = iter(range(10**6))

    def next_prompt(self) -> Prompt:
        return Prompt(GroupId(0, next(self._positions)), (1, 2), "toy", "")

    def state(self) -> Mapping[str, Any]:
        return {}


async def test_new_weights_let_thousands_in_and_others_run_between_them(tmp_path: Path) -> None:
    turns, loop = 0, asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop.call_soon(turn)
    ledger = Ledger(tmp_path / "ledger", 1)
    services = cast(Services, None)
    ctx = RunContext(Config(), "run", 1, services, ledger, MemoryMembership())
    admission = Wide(200, lambda: turns)
    source = PromptGroups(ctx, cast(PromptSampler, Prompts()), Forever(), None)
    running = asyncio.create_task(source.run(admission))
    await asyncio.wait_for(admission.all_in.wait(), HANG_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    ledger.close()
    assert all(later > earlier for earlier, later in zip(admission.seen, admission.seen[1:], strict=False))


async def test_who_is_done_is_looked_through_only_when_they_may_be_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a step of n groups looks n times through all that are under way."""
    looks: list[int] = []

    def choose(step: int, batch_size: int, finished: Sequence[int], *more: Any) -> list[int] | None:
        looks.append(len(finished))
        return staleness.choose(step, batch_size, finished, *more)

    monkeypatch.setattr("argosy.controller.stream.choose", choose)
    async with streaming(tmp_path, 3, ends=lambda _: False) as (stream, source, _):
        stream.synced(0)
        await settled()
        first = asyncio.create_task(step_of(stream, 1))
        await settled()
        source.end(1)
        await settled()
        assert not looks
        source.end(0)
        assert await asyncio.wait_for(first, HANG_S) == [0, 1]
        assert looks == [2]


@given(
    st.lists(st.integers(1, 4), max_size=30),
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=1),
)
def test_groups_are_spread_as_looking_at_every_member_would(sizes: list[int], weights: dict[str, float]) -> None:
    """Each to the member that would be done with it soonest, the longest first: without a look at all for each."""
    params = SamplingParams(max_tokens=1)
    groups = [
        [GenerateRequest(SampleId(0, position, k), (1,), params, "train") for k in range(size)]
        for position, size in enumerate(sizes)
    ]
    load = dict.fromkeys(weights, 0)
    expected: dict[SampleId, str] = {}
    for group in sorted(groups, key=lambda group: (-len(group), group[0].sample_id)):
        member = min(weights, key=lambda name: ((load[name] + len(group)) / weights[name], name))
        load[member] += len(group)
        expected |= dict.fromkeys((request.sample_id for request in group), member)
    shares = assign_groups([request for group in groups for request in group], weights)
    assert {request.sample_id: member for member, share in shares.items() for request in share} == expected
