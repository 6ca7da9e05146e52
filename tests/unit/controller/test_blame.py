"""Who is to blame when samples fail: the prompt, or the server; and nobody else waits for it (F10, D6)."""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.context import Services
from argosy.controller.ledger import Ledger
from argosy.controller.stages import single
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.running import Blame
from argosy.controller.stages.window import Window
from argosy.controller.vitals import Vitals
from argosy.types.errors import UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, SamplingParams


class Server:
    """Fails the samples of some prompts (None: of all), or loses its first."""

    def __init__(self, *, fails: set[int] | None = frozenset(), dies: bool = False, silent: bool = False) -> None:  # type: ignore[assignment]
        self.fails = fails
        self.dies = dies
        self.silent = silent
        self.asked: Counter[SampleId] = Counter()

    async def status(self) -> Any:
        if self.silent:
            await asyncio.sleep(1000)
        return types.SimpleNamespace(slot_count=4, state="ready", version=None, engine="x", capabilities={})

    async def generate(self, requests: list[GenerateRequest], **_: object) -> AsyncIterator[Completion]:
        [request] = requests
        self.asked[request.sample_id] += 1
        await asyncio.sleep(0.002)
        if self.dies:
            self.dies = False
            raise UnavailableError("connection lost")
        failed = self.fails is None or request.sample_id.position in self.fails
        reason = FinishReason.FAILED if failed else FinishReason.STOP
        yield Completion(request.sample_id, (1,) if not failed else (), (0.0,) if not failed else (), (), reason)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.001)


def stage(tmp_path: Path, **servers: Server) -> RolloutStage:
    services = Services(rollouts=cast(Any, servers), reward=cast(Any, None), policy=cast(Any, None), reference=None)
    ctx = types.SimpleNamespace(
        config=Config(), deadline_s=5.0, count=lambda *_: None, services=services, ledger=Ledger(tmp_path, 1),
        vitals=Vitals(),
    )  # fmt: skip
    return RolloutStage(cast(Any, ctx))


def samples(positions: range, count: int = 8) -> list[GenerateRequest]:
    return [
        GenerateRequest(SampleId(0, position, k), (1,), SamplingParams(4), cast(Any, "api"))
        for position in positions
        for k in range(count)
    ]


async def ends(rollout: RolloutStage, asked: list[GenerateRequest]) -> dict[SampleId, Completion]:
    async with asyncio.timeout(30):
        found = await asyncio.gather(*(rollout.generate_one(request) for request in asked))
    return {one.sample_id: one for one in found}


async def test_f10_a_prompt_that_all_fail_puts_no_server_aside(tmp_path: Path) -> None:
    servers = {name: Server(fails={2}) for name in "abc"}
    rollout = stage(tmp_path, **servers)
    found = await ends(rollout, samples(range(6)))
    assert {key.position for key, one in found.items() if one.finish_reason is FinishReason.FAILED} == {2}
    assert rollout.usable == {"a", "b", "c"}
    assert not rollout.singles._set_aside


async def test_d6_a_sample_goes_to_others_than_the_server_that_failed_it(tmp_path: Path) -> None:
    bad = Server(fails=None)
    rollout = stage(tmp_path, a=bad, b=Server(), c=Server())
    found = await ends(rollout, samples(range(12)))
    assert {one.finish_reason for one in found.values()} == {FinishReason.STOP}, "none is dropped for it"
    assert bad.asked, "it got some"
    assert max(bad.asked.values()) == 1
    assert "a" not in rollout.usable


async def test_f10_a_silent_server_holds_up_no_sample_of_another(tmp_path: Path) -> None:
    rollout = stage(tmp_path, a=Server(dies=True), b=Server(), c=Server(silent=True))
    rollout.usable.discard("c")
    await rollout.singles.refresh()
    async with asyncio.timeout(5):
        found = await asyncio.gather(*(rollout.generate_one(request) for request in samples(range(4))))
    assert {one.finish_reason for one in found} == {FinishReason.STOP}


async def test_another_life_of_a_server_is_not_put_aside(tmp_path: Path) -> None:
    rollout = stage(tmp_path, a=Server(), b=Server())
    rollout.singles._put_aside("a")
    await rollout.singles._readmit()
    assert rollout.usable == {"b"}
    rollout.singles.has_left("a")
    await rollout.singles._readmit()
    assert rollout.usable == {"a", "b"}


def test_blame_counts_servers() -> None:
    blame = Blame()
    for _ in range(3):
        blame.add("a", afresh=False)
    assert blame.servers(["b", "c"]) == 1
    assert blame.servers(["a"]) == 3, "there is no other"
    blame.add("b", afresh=False)
    assert blame.servers(["c"]) == 2
    blame.add("c", afresh=True)
    assert (blame.tries, blame.servers(["a"])) == (1, 1)
    assert Blame(2).servers(["a"]) == 2


def test_a_burst_of_refusals_leaves_a_window_of_its_room() -> None:
    window = Window()
    for had in range(71, 38, -1):  # all sent before the first was turned away: it has room for 39
        window.refused(had)
    assert window.limit(64) == 29
    window.refused(28)
    assert window.limit(64) == 21
