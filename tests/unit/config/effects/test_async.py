"""argosy.stream.* and argosy.weight_sync.while_generating: what is under way, and what a sync does to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from argosy.config import Config, load
from argosy.controller.groups import Ticket
from argosy.controller.stream import GroupStream
from argosy.types.records import Completion, GenerateRequest, Mutation
from unit.config.effects import recorded as harness
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import problems

Patch = pytest.MonkeyPatch


def changed(job: Config, values: dict[str, Any]) -> Config:
    name = "-".join(map(str, values.values()))
    own = {"trainer.total_training_steps": 2, "trainer.default_local_dir": f"{job.run_folder}-{name}"}
    return job.with_values(own | values)


async def test_max_in_flight_groups(job: Config, monkeypatch: Patch) -> None:
    """One at a time: the next is begun when the one before is scored."""
    real, under_way = GroupStream._begin, list[int]()

    def begin(self: GroupStream, admitted_step: int) -> Ticket:
        ticket = real(self, admitted_step)
        under_way.append(len(self._gate.in_flight))
        return ticket

    monkeypatch.setattr(GroupStream, "_begin", begin)
    most_seen = []
    for most in (0, 1):
        under_way.clear()
        await run_recorded(
            changed(job, {"argosy.max_staleness": 1, "argosy.stream.max_in_flight_groups": most}), monkeypatch
        )
        most_seen.append(max(under_way))
    assert most_seen[0] > 1
    assert most_seen[1] == 1
    assert "max_in_flight_groups: got 3 with argosy.max_staleness=0" in problems(
        job.with_values({"argosy.stream.max_in_flight_groups": 3})
    )


async def test_extra_groups(job: Config, monkeypatch: Patch) -> None:
    for extra in (0, 2):
        recorded = await run_recorded(
            changed(job, {"argosy.max_staleness": 1, "argosy.stream.extra_groups": extra}), monkeypatch
        )
        assert (sum(recorded.metrics("stream/surplus_groups")) > 0) is (extra > 0)
    few = {"argosy.stream.extra_groups": 2, "argosy.stream.max_in_flight_groups": 5}
    for staleness in (0, 1):
        refused = job.with_values(few | {"argosy.max_staleness": staleness, "data.train_batch_size": 4})
        assert "max_in_flight_groups: got 5, fewer than data.train_batch_size=4" in problems(refused)
        enough = refused.with_values({"argosy.stream.max_in_flight_groups": 6})
        assert "max_in_flight_groups" not in problems(enough)
    shared = job.with_values({"argosy.stream.extra_groups": 1, "argosy.colocated": True})
    assert "over-sampling (argosy.stream.extra_groups or extra_samples): trainer and rollout" in problems(shared)


async def test_extra_samples(job: Config, monkeypatch: Patch) -> None:
    """Three are drawn where two are trained: the third of each group is stopped."""
    for extra in (0, 1):
        recorded = await run_recorded(changed(job, {"argosy.stream.extra_samples": extra}), monkeypatch)
        assert max(recorded.metrics("stream/stopped_samples"), default=0) >= 8 * extra
        assert (recorded.metrics("stream/stopped_samples") == []) is (extra == 0)
        assert [len(batch) for batch in recorded.batches] == [8, 8]


async def test_while_generating(job: Config, monkeypatch: Patch) -> None:
    """ "abort" pauses each server for the swap; "keep" and "finish" pause none (what they do instead, a test of the
    stage shows)."""
    calls: list[str] = []

    async def pause(self: Any, mode: str, ctx: Mutation) -> None:
        calls.append(f"pause {mode}")

    async def resume(self: Any, ctx: Mutation) -> None:
        calls.append("resume")

    monkeypatch.setattr(harness._Rollout, "pause", pause, raising=False)
    monkeypatch.setattr(harness._Rollout, "resume", resume, raising=False)
    for mode, wanted in (("keep", []), ("finish", []), ("abort", ["pause abort", "resume"] * 3)):
        calls.clear()
        await run_recorded(
            changed(job, {"argosy.max_staleness": 1, "argosy.weight_sync.while_generating": mode}), monkeypatch
        )
        assert calls == wanted


async def test_validation_overlap(job: Config, monkeypatch: Patch) -> None:
    """The first step is generated before the held-out prompts are answered, or after."""
    real, ended = harness._Rollout.generate, list[str]()

    async def generate(self: Any, requests: Sequence[GenerateRequest], **settings: Any) -> AsyncIterator[Completion]:
        purpose = requests[0].purpose
        await asyncio.sleep(0.05 * (purpose == "val"))
        async for completion in real(self, requests, **settings):
            yield completion
        ended.append(purpose)

    monkeypatch.setattr(harness._Rollout, "generate", generate)
    for overlap, wanted in ((False, "val"), (True, "train")):
        ended.clear()
        await run_recorded(changed(job, {"argosy.validation_overlap": overlap}), monkeypatch)
        assert ended[0] == wanted
    shared = job.with_values({"argosy.validation_overlap": True, "argosy.colocated": True})
    assert "argosy.validation_overlap: got true with argosy.colocated=true" in problems(shared)


@pytest.mark.parametrize(("words", "wanted"), [
    ([], None),
    (["argosy.max_staleness=1"], "token"),
    (["argosy.max_staleness=1", "algorithm.rollout_correction.rollout_is=null"], None),
    (["argosy.max_staleness=1", "algorithm.rollout_correction.rollout_is=sequence"], "sequence"),
    (["argosy.max_staleness=1", "algorithm.rollout_correction.bypass_mode=true"], None),
])  # fmt: skip
def test_rollout_correction_is_on_where_samples_may_be_stale(words: list[str], wanted: str | None) -> None:
    assert load(words).algorithm.rollout_correction.rollout_is == wanted
