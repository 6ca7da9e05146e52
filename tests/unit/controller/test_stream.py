"""The stream between a source that a test writes down and a trainer that a test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.groups import Admission, FinishedGroup, Ticket
from argosy.controller.ledger import Ledger
from argosy.controller.producing import Produced
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stream import TOO_OLD, GroupStream
from argosy.controller.stream_codec import group_from_json, group_to_json
from argosy.membership.memory import MemoryMembership
from argosy.types.errors import StateError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import (
    Abstained,
    Completion,
    Failed,
    FinishReason,
    Prompt,
    Scored,
    VersionRun,
)

BATCH = 2


def finished(position: int, admitted: int, oldest: int | None = None) -> FinishedGroup:
    """One sample, of one version."""
    step = admitted if oldest is None else oldest
    sample = SampleId(0, position, 0)
    version = VersionRun(PolicyVersion("l0", step, "d"), 2)
    row = Completion(sample, (5, 6), (-0.1, -0.2), (version,), FinishReason.STOP)
    prompt = Prompt(GroupId(0, position), (1, 2), "toy", "")
    return FinishedGroup(prompt, {sample: row}, {sample: Scored(1.0)}, admitted, step, 0.0, 0.0)


class Source:
    """Begins groups as fast as it may, and ends them at once unless told otherwise."""

    def __init__(self, ledger: Ledger, ends: Callable[[int], bool] = lambda _: True) -> None:
        self.ledger = ledger
        self.ends = ends
        self.begun: list[tuple[Ticket, int]] = []
        self.open: set[int] = set()
        self.stopped: list[int] = []
        self.cancelled = False
        self.admission: Admission | None = None

    async def run(self, admission: Admission) -> None:
        self.admission = admission
        try:
            while True:
                ticket = await admission.admit()
                position = len(self.begun)
                self.begun.append((ticket, position))
                self.ledger.drawn([(SampleId(0, position, 0), position)])
                self.open.add(position)
                if self.ends(position):
                    self.end(position)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def end(self, position: int, oldest: int | None = None) -> None:
        assert self.admission is not None
        ticket, _ = self.begun[position]
        self.open.discard(position)
        self.admission.finish(ticket, finished(position, ticket.admitted_step, oldest))

    def stop(self, ticket: Ticket, reason: str) -> None:
        position = next(place for own, place in self.begun if own == ticket)
        self.stopped.append(position)
        self.open.discard(position)
        self.ledger.dropped([SampleId(0, position, 0)], reason)

    def open_groups(self) -> frozenset[GroupId]:
        return frozenset(GroupId(0, position) for position in self.open)

    def sampler_state(self) -> Mapping[str, Any]:
        return {"position": len(self.begun)}

    def state(self) -> Mapping[str, Any]:
        return {"open": sorted(self.open)}

    def restore(self, state: Mapping[str, Any], resume: Callable[[GroupId, int], Ticket]) -> None:
        raise NotImplementedError


@asynccontextmanager
async def streaming(
    folder: Path, max_staleness: int, ends: Callable[[int], bool] = lambda _: True, total_steps: int = 1000
) -> AsyncIterator[tuple[GroupStream, Source, Ledger]]:
    ledger = Ledger(folder / "ledger", 1)
    config = Config().with_values({"data.train_batch_size": BATCH, "argosy.max_staleness": max_staleness})
    services = cast(Services, SimpleNamespace(rollouts={}, router=None, pools={}, lost=frozenset()))
    ctx = RunContext(config, "run", 1, services, ledger, MemoryMembership())
    source = Source(ledger, ends)
    stream = GroupStream(ctx, source, RolloutStage(ctx), lambda *_: None, total_steps, 10**9)
    running = asyncio.create_task(stream.run())
    try:
        yield stream, source, ledger
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        ledger.close()


async def step_of(stream: GroupStream, step: int) -> list[int]:
    """Positions of the groups that a step takes; their samples become trained."""
    produced = await asyncio.wait_for(stream.produce(step), 20)
    assert isinstance(produced, Produced)
    return [prompt.group.position for prompt in produced.record.prompts]


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_f16_the_queue_is_bounded_and_what_is_trained_is_young_enough(tmp_path: Path, max_staleness: int) -> None:
    """A source that is done at once, a trainer of a hundred steps; then the trainer is gone."""
    async with streaming(tmp_path, max_staleness) as (stream, source, ledger):
        await settled()
        assert not source.begun, "nothing before the first weights are there"
        stream.synced(0)
        trained: list[int] = []
        for step in range(1, 101):
            trained += await step_of(stream, step)
            await settled()
            waiting = len(source.begun) - len(trained)
            assert waiting <= max_staleness * BATCH, "while a step is trained"
            tickets = {position: ticket for ticket, position in source.begun}
            assert all(step - 1 - tickets[place].admitted_step <= max_staleness for place in trained[-BATCH:])
            ledger.trained([SampleId(0, place, 0) for place in trained[-BATCH:]], step)
            ledger.commit_step(step, stream.open_groups())
            stream.synced(step)
            await settled()
            assert len(source.begun) - len(trained) <= (max_staleness + 1) * BATCH
        assert trained == list(range(200))
        begun = len(source.begun)
        await settled()
        assert len(source.begun) == begun, "it waits for a trainer"
    assert source.cancelled


async def test_slow_groups_are_waited_for_when_they_are_due(tmp_path: Path) -> None:
    """The first group of all takes long: others overtake it as long as it may be trained later, and then no longer."""
    async with streaming(tmp_path, 2, ends=lambda position: position > 0) as (stream, source, _):
        stream.synced(0)
        for step, taken in ((1, [1, 2]), (2, [3, 4])):
            assert await step_of(stream, step) == taken
            stream.synced(step)
        third = asyncio.create_task(stream.produce(3))
        await settled()
        assert not third.done(), "weights of step 0 can't be trained in step 4"
        source.end(0)
        produced = await third
        assert isinstance(produced, Produced)
        assert [prompt.group.position for prompt in produced.record.prompts] == [0, 5]
        assert produced.metrics["staleness/max"] == 2.0
        assert produced.metrics["stream/carried_over_groups"] == 4.0


async def test_what_is_too_old_all_the_same_is_dropped_and_replaced(tmp_path: Path) -> None:
    """A server that answers with weights of long ago, whatever it should: the strict check finds it."""
    async with streaming(tmp_path, 1, ends=lambda position: position != 1) as (stream, source, ledger):
        stream.synced(0)
        for step in range(1, 3):
            if step == 2:
                source.end(1)
            await step_of(stream, step)
            stream.synced(step)
        await settled()
        late = len(source.begun)
        source.ends = lambda position: position != late
        assert await step_of(stream, 3)
        stream.synced(3)
        await settled()
        source.end(late, oldest=0)
        produced = await asyncio.wait_for(stream.produce(4), 20)
        assert isinstance(produced, Produced)
        assert late not in [prompt.group.position for prompt in produced.record.prompts]
        assert produced.metrics["stream/stale_groups"] == 1.0
        entry = next(entry for entry in ledger.uncommitted() if entry.sample == SampleId(0, late, 0))
        assert entry.reason == TOO_OLD


async def test_the_last_steps_need_no_more_groups_than_there_are_steps(tmp_path: Path) -> None:
    async with streaming(tmp_path, 3, total_steps=2) as (stream, source, _):
        stream.synced(0)
        await settled()
        assert len(source.begun) == 2 * BATCH
        assert await step_of(stream, 1) == [0, 1]
        assert await step_of(stream, 2) == [2, 3]
        stream.synced(2)
        await settled()
        assert len(source.begun) == 2 * BATCH
        assert not stream.open_groups()


async def test_a_group_is_handed_over_once(tmp_path: Path) -> None:
    async with streaming(tmp_path, 1) as (stream, source, _):
        stream.synced(0)
        await settled()
        with pytest.raises(StateError, match="group 1 is not under way"):
            source.end(0)
        with pytest.raises(StateError, match="group 1 is not under way"):
            stream.give_up(source.begun[0][0])


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
json_values = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.booleans()))
outcomes = st.one_of(
    st.builds(Scored, numbers, st.dictionaries(st.text(max_size=5), numbers), st.lists(numbers).map(tuple)),
    st.builds(Abstained, st.text(max_size=5)),
    st.builds(Failed, st.text(max_size=5), st.text(max_size=5)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), numbers), max_size=6), outcomes, json_values, st.text(max_size=8))
def test_groups_are_kept_exactly(
    tokens: list[tuple[int, float]], outcome: Any, extra: dict[str, Any], text: str
) -> None:
    sample = SampleId(3, 7, 1, 2)
    versions = tuple(VersionRun(PolicyVersion("l1", step, "ab"), 1) for step in range(len(tokens)))
    row = Completion(
        sample, tuple(token for token, _ in tokens), tuple(value for _, value in tokens), versions, FinishReason.LENGTH,
        text, "no", "train", 3, "rollout-1", (1,) * len(tokens), 2, ((0, 0.5),), ({"role": "tool"},), {"calls": 1.0},
        outcome,
    )  # fmt: skip
    prompt = Prompt(GroupId(3, 7), (1, 2), "toy", {"any": [1, None]}, extra, text, 4, ({"role": "user"},))
    group = FinishedGroup(prompt, {sample: row}, {sample: outcome}, 2, 1, 0.25, 0.5)
    assert group_from_json(json.loads(json.dumps(group_to_json(group)))) == group
