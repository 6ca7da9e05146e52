"""Weights that servers pass on to each other: in a sync of all, and to one that joins or was away (cases D11, E11)."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger
from argosy.controller.stages import stragglers
from argosy.controller.stages.relay import catch_up
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sync import publish_and_sync
from argosy.membership.memory import MemoryMembership
from argosy.roles.rollout import Rollout
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import LoraOptions
from argosy.types.errors import FencedError, StateError, StepMismatchError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import LossConfig, UpdateConfig, WeightChunk, WeightsManifest
from contract.forms import Form, MakeRollout, collect, mutation, request
from support.training import grouped_batch, options_for

UPDATE = UpdateConfig(LossConfig(), mini_batch_size=12)


class Counted:
    """A server's weights, and the bytes of them that others have taken; `stop` ends a stream after its first chunk."""

    address = ""

    def __init__(self, core: Any, name: str, sent: Counter[str]) -> None:
        self._source = core.weight_source()
        self._name = name
        self._sent = sent
        self.stop: Callable[[], Any] | None = None

    async def get_manifest(self) -> WeightsManifest:
        return await self._source.get_manifest()  # type: ignore[no-any-return]

    async def manifest_of(self, version: PolicyVersion) -> WeightsManifest:
        return await self._source.manifest_of(version)  # type: ignore[no-any-return]

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        async for chunk in self._source.stream_weights(version, names, base=base):
            self._sent[self._name] += len(chunk.data)
            yield chunk
            if self.stop is not None:
                await self.stop()


class Fleet:
    """Real servers behind gRPC, a real trainer, and what the controller has of them."""

    def __init__(self, form: Form, make: MakeRollout, folder: Path, trainer: Trainer) -> None:
        self._form = form
        self._make = make
        self.folder = folder
        self.trainer = trainer
        self.rollouts: dict[str, Rollout] = {}
        self.cores: dict[str, Any] = {}
        self.sources: dict[str, Counted] = {}
        self.servers: dict[str, Any] = {}
        self.sent: Counter[str] = Counter()
        self.lost: set[str] = set()

    async def start(self, **keys: object) -> None:
        values = {"argosy.rpc.deadline_s": 60.0, "argosy.weight_sync.transport": "stream", **keys}
        policy = await self._form.policy(self.trainer)
        services = Services(self.rollouts, None, policy, None, lost=self.lost)  # type: ignore[arg-type]
        ledger = Ledger(self.folder / "ledger", 1)
        self.ctx = RunContext(Config().with_values(values), "run", 1, services, ledger, MemoryMembership())
        self.stage = RolloutStage(self.ctx)

    async def join(self, *names: str, **options: Any) -> None:
        for name in names:
            core = self.cores[name] = self._make(start_stale=True, **options)
            source = self.sources[name] = Counted(core, name, self.sent)
            core.weight_source = lambda source=source: source
            self.rollouts[name] = await self._form.rollout(core)
            self.servers[name] = self._form.servers[-1]

    async def sync(self, step: int) -> PolicyVersion:
        return await publish_and_sync(self.ctx, self.stage, step)

    async def train(self) -> None:
        await self.trainer.update(grouped_batch(), UPDATE, mutation())

    def versions(self) -> dict[str, PolicyVersion | None]:
        return {name: core.engine.version for name, core in self.cores.items()}

    @property
    def size(self) -> float:
        return 1e6 * self.ctx.measured["sync/manifest_mb"]


@pytest.fixture
async def trainer(tiny: Path) -> AsyncIterator[Trainer]:
    made = Trainer(options_for(tiny), make_backend)
    yield made
    made.close()


@pytest.fixture
async def fleet(grpc_form: Form, make_rollout: MakeRollout, tmp_path: Path, trainer: Trainer) -> AsyncIterator[Fleet]:
    made = Fleet(grpc_form, make_rollout, tmp_path, trainer)
    await made.start()
    yield made
    await made.stage.turns.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stragglers, "LONGEST_PAUSE_S", 0.2)


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nobody tells a test
            await asyncio.sleep(0.01)
    assert condition(), what


async def test_the_trainer_sends_to_two_of_five_and_they_pass_it_on(fleet: Fleet) -> None:
    await fleet.join("a", "b", "c", "d", "e")
    for step in (0, 1):
        fleet.sent.clear()
        version = await fleet.sync(step)
        assert fleet.versions() == dict.fromkeys("abcde", version)
        assert fleet.ctx.measured["sync/trainer_mb"] == 2 * fleet.ctx.measured["sync/manifest_mb"]
        assert fleet.ctx.measured["sync/transferred_mb"] == 5 * fleet.ctx.measured["sync/manifest_mb"]
        assert sum(fleet.sent.values()) == 3 * fleet.size
        assert max(fleet.sent.values()) <= 2 * fleet.size, "one server at a time, each other one in between"
        await fleet.train()
    assert fleet.stage.usable == set("abcde")
    found = [await collect(core, [request(1, temperature=0.0)]) for core in fleet.cores.values()]
    assert len({one[request(1).key].token_ids for one in found}) == 1


async def test_d10_a_relay_that_dies_half_way_costs_its_child_another_try(fleet: Fleet, quick: None) -> None:
    """`a` serves one chunk and is gone; whoever took from it takes from another one, and only `a` lacks the version."""
    await fleet.join("a", "b", "c", "d")
    before = await fleet.sync(0)
    await fleet.train()

    async def die() -> None:
        await fleet.servers["a"].server.stop(None)

    fleet.sources["a"].stop = die
    version = await fleet.sync(1)
    assert fleet.ctx.counters["sync/rerouted"] == 1
    others = {name: held for name, held in fleet.versions().items() if name != "a"}
    assert others == dict.fromkeys("bcd", version)
    assert fleet.versions()["a"] in ((version,) if "a" in fleet.stage.usable else (before, version))


async def test_damage_on_the_way_is_taken_from_another_server(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    await fleet.join("a", "b", "c", "d", "e")

    def spoil(source: Counted) -> None:
        whole = source.stream_weights

        async def spoilt(*arguments: Any, **keys: Any) -> AsyncIterator[WeightChunk]:
            async for chunk in whole(*arguments, **keys):
                yield WeightChunk(chunk.name, chunk.offset, bytes(len(chunk.data)), chunk.checksum)

        monkeypatch.setattr(source, "stream_weights", spoilt)

    spoil(fleet.sources["a"])
    version = await fleet.sync(0)
    assert fleet.versions() == dict.fromkeys("abcde", version)
    assert fleet.ctx.counters["sync/rerouted"] == 1
    assert fleet.sent["a"] > 0


async def test_e11_a_newcomer_takes_the_version_from_a_server_that_has_it_and_is_nobodys_source(fleet: Fleet) -> None:
    """`m1` and `m0` sort before all others, hold nothing or other weights, and the trainer has moved on."""
    await fleet.join("m8", "m9")
    version = await fleet.sync(0)
    await fleet.train()
    await fleet.trainer.publish_weights("l0", 1, mutation(expected_step=1))  # the next one: no source of this version
    fleet.sent.clear()
    await fleet.join("m0", "m1")
    for name in ("m0", "m1"):
        fleet.stage.joins(name)
        with pytest.raises(StateError):
            await collect(fleet.rollouts[name], [request(0)])
    await asyncio.gather(*(catch_up(fleet.ctx, fleet.stage, name) for name in ("m0", "m1")))
    assert fleet.versions() == dict.fromkeys(("m0", "m1", "m8", "m9"), version)
    assert dict(fleet.sent) == {"m8": fleet.size, "m9": fleet.size}, "each was a source of one"
    assert not {"m0", "m1"} & fleet.stage.usable, "this is for the caller to do"
    assert await fleet.stage.take_in("m1")
    await catch_up(fleet.ctx, fleet.stage, "m1")
    assert fleet.ctx.counters["sync/caught_up"] == 2, "there was nothing to do"


async def test_e11_a_server_of_another_version_is_no_source(fleet: Fleet) -> None:
    """It says that it is ready and counts as usable, but an update has passed it by."""
    await fleet.join("a", "b")
    await fleet.sync(0)
    await fleet.train()
    fleet.lost.add("a")
    version = await fleet.sync(1)
    fleet.lost.clear()
    fleet.stage.usable.add("a")
    fleet.sent.clear()
    await fleet.join("c")
    await catch_up(fleet.ctx, fleet.stage, "c")
    assert fleet.versions()["c"] == version
    assert dict(fleet.sent) == {"b": fleet.size}


async def test_e11_a_server_that_is_not_ready_is_no_source(fleet: Fleet) -> None:
    """It holds the version, and may be about to swap or to leave."""
    await fleet.join("a", "b")
    version = await fleet.sync(0)
    await fleet.cores["a"].pause("keep", mutation())
    await fleet.join("c")
    fleet.sent.clear()
    await catch_up(fleet.ctx, fleet.stage, "c")
    assert fleet.versions()["c"] == version
    assert dict(fleet.sent) == {"b": fleet.size}


async def test_d11_a_peer_that_dies_half_way_and_the_trainer_as_the_last_source(fleet: Fleet) -> None:
    await fleet.join("a", "b")
    version = await fleet.sync(0)
    await fleet.join("c")

    async def die() -> None:
        # Shielded: it ends the very call that it is in, and a stop that is cancelled half-way can't be done again.
        await asyncio.shield(asyncio.gather(*(fleet.servers[name].server.stop(None) for name in ("a", "b"))))

    fleet.sources["a"].stop = die
    await catch_up(fleet.ctx, fleet.stage, "c")
    assert fleet.versions()["c"] == version
    assert fleet.ctx.counters["sync/rerouted"] == 2
    assert fleet.sent["b"] == 0


async def test_nobody_has_the_version(fleet: Fleet) -> None:
    """The only server that had it has gone, and the trainer has moved on: the newcomer keeps what it has."""
    await fleet.join("a")
    await fleet.sync(0)
    await fleet.train()
    await fleet.trainer.publish_weights("l0", 1, mutation(expected_step=1))
    await fleet.servers["a"].server.stop(None)
    await fleet.join("b")
    with pytest.raises(UnavailableError, match="nobody gives away"):
        await catch_up(fleet.ctx, fleet.stage, "b")
    assert fleet.versions()["b"] is None


async def test_a_sync_of_all_goes_before_the_catching_up_of_one(fleet: Fleet) -> None:
    """It neither waits for it nor is confused by it; the newcomer has the new version in the end, either way."""
    await fleet.join("a", "b")
    await fleet.sync(0)
    await fleet.join("c")
    reached, forever = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await forever.wait()

    for name in ("a", "b"):
        fleet.sources[name].stop = hang
    catching_up = asyncio.create_task(catch_up(fleet.ctx, fleet.stage, "c"))
    await reached.wait()
    for name in ("a", "b"):
        fleet.sources[name].stop = None
    await fleet.train()
    version = await fleet.sync(1)
    await catching_up
    assert fleet.versions() == dict.fromkeys("abc", version)
    forever.set()


async def test_a_server_that_fails_a_sync_is_waited_for_once_and_comes_back_by_itself(
    fleet: Fleet, quick: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.join("a", "b")
    await fleet.sync(0)
    away, asked = True, 0
    client: Any = fleet.rollouts["b"]

    def gone(name: str) -> None:
        there = getattr(client, name)

        async def maybe(*arguments: Any) -> Any:
            nonlocal asked
            asked += name != "status"
            if away:
                raise UnavailableError("frozen\nwith a second line")
            return await there(*arguments)

        monkeypatch.setattr(client, name, maybe)

    for name in ("status", "init_weight_transfer"):
        gone(name)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            await fleet.train()
            version = await fleet.sync(step)
            assert fleet.stage.usable == {"a"}
    assert asked == 1, "only the first sync has tried"
    assert fleet.ctx.counters["sync/failed_members"] == 1
    assert [record.getMessage() for record in caplog.records if record.name.startswith("argosy")] == [
        "b is left out until it answers again; its weight sync failed: frozen"
    ]
    away = False
    await until(lambda: fleet.stage.usable == {"a", "b"}, "b is back")
    assert fleet.versions() == dict.fromkeys("ab", version)
    await fleet.train()
    version = await fleet.sync(4)
    assert fleet.versions() == dict.fromkeys("ab", version)


async def test_d11_a_server_that_comes_into_use_during_a_sync_is_brought_its_version(
    fleet: Fleet, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the version before and so was right when it was taken in, and is wrong a moment later."""
    await fleet.join("a", "b")
    before = await fleet.sync(0)
    await fleet.train()
    client: Any = fleet.rollouts["b"]
    finish, synced, after = client.finish_weight_update, fleet.stage.synced, list[set[str]]()

    async def while_it_swaps(*arguments: Any) -> Any:
        fleet.lost.clear()
        assert await fleet.stage.take_in("a")
        return await finish(*arguments)

    async def look(*arguments: Any) -> None:
        await synced(*arguments)
        after.append(set(fleet.stage.usable))

    monkeypatch.setattr(client, "finish_weight_update", while_it_swaps)
    monkeypatch.setattr(fleet.stage, "synced", look)
    fleet.lost.add("a")
    version = await fleet.sync(1)
    assert before != version
    assert after == [{"b"}]
    await until(lambda: fleet.stage.usable == {"a", "b"}, "a is back")
    assert fleet.versions() == dict.fromkeys("ab", version)


async def test_f8_a_leader_that_was_replaced_neither_syncs_nor_catches_up(fleet: Fleet) -> None:
    await fleet.join("a")
    await fleet.sync(0)
    await fleet.join("b")
    for name in ("a", "b"):
        await fleet.rollouts[name].resume(dataclasses.replace(mutation(term=2), run_id="run"))
    with pytest.raises(FencedError):
        await catch_up(fleet.ctx, fleet.stage, "b")
    with pytest.raises(FencedError):
        await fleet.sync(0)
    assert fleet.versions()["b"] is None


async def test_d11_a_newcomer_gets_what_is_under_an_adapter_from_the_trainer_and_the_adapter_from_a_server(
    grpc_form: Form, make_rollout: MakeRollout, tmp_path: Path, tiny: Path
) -> None:
    trainer = Trainer(options_for(tiny, lora=LoraOptions(rank=4, alpha=8)), make_backend)
    fleet = Fleet(grpc_form, make_rollout, tmp_path, trainer)
    await fleet.start(**{"actor_rollout_ref.model.lora_rank": 4})
    await fleet.join("a", "b", "c")
    for step in (0, 1):
        version = await fleet.sync(step)
        assert fleet.versions() == dict.fromkeys("abc", version)
        await fleet.train()
    assert fleet.ctx.measured["sync/trainer_mb"] == 2 * fleet.ctx.measured["sync/manifest_mb"], "an adapter, passed on"
    await fleet.join("d")
    with pytest.raises(StepMismatchError):  # the trainer has trained on, and can't tell what is under it any more
        await catch_up(fleet.ctx, fleet.stage, "d")
    version = await fleet.sync(2)
    await fleet.join("e")
    fleet.sent.clear()
    await catch_up(fleet.ctx, fleet.stage, "e")
    assert fleet.versions() == dict.fromkeys("abcde", version)
    assert sum(fleet.sent.values()) == fleet.size, "the adapter alone"
    found = [await collect(core, [request(1, temperature=0.0)]) for core in fleet.cores.values()]
    assert len({one[request(1).key].token_ids for one in found}) == 1
    assert (await fleet.trainer.weight_source().get_manifest()).adapter is not None
    await fleet.stage.turns.close()
    trainer.close()
