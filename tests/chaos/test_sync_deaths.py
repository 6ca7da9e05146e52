"""Weight syncs in which servers die or freeze: it costs the deadline at most, and nobody serves half of a version.

Cases D10, D11 and E11 with real server processes. Many die in one sync, each at another point of its way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger
from argosy.controller.stages.relay import catch_up
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sync import publish_and_sync
from argosy.membership.memory import MemoryMembership
from argosy.modeling.tiny import save_tiny_model
from argosy.rpc import weights_service
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.server import RpcServer
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.types.errors import StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import LossConfig, UpdateConfig, WeightChunk, WeightsManifest
from contract.forms import Form, collect, mutation, request
from support.freezing import freeze
from support.training import grouped_batch, options_for
from support.weight_servers import Server, start_servers, stop_servers

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

PHASES = {
    "init": "init_weight_transfer",
    "start": "start_weight_update",
    "update": "update_weights",
    "finish": "finish_weight_update",
}
SURVIVORS = ["s0", "s1", "s2"]
KILLED = [f"{phase}-{moment}" for phase in PHASES for moment in ("before", "during", "after")]
FROZEN = ["init-before", "update-during", "update-after", "finish-before"]
GUARD_S = 60.0


class Doomed:
    """A server's client that lets the server die or freeze at one point of a sync.

    Args:
        server: The server.
        end: Kills or freezes it.
    """

    def __init__(self, server: Server, end: Callable[[int], None], half: Half) -> None:
        self._server = server
        self._phase, self._moment = server.name.split("-")
        self._end = end
        self._half = half
        self.armed = True
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._server.client, name)
        if name not in PHASES.values():
            return there
        self.asked += 1
        return self._doomed if name == PHASES[self._phase] and self.armed else there

    async def _doomed(self, *arguments: Any) -> Any:
        self.armed = False
        call = getattr(self._server.client, PHASES[self._phase])
        if self._moment == "before":
            self._end(self._server.pid)
            return await call(*arguments)
        if self._moment == "after":
            answer = await call(*arguments)
            self._end(self._server.pid)
            return answer
        if self._phase == "update":
            return await self._half.give(call, arguments, lambda: self._end(self._server.pid))
        answering = asyncio.ensure_future(call(*arguments))
        await asyncio.sleep(0.002)
        self._end(self._server.pid)
        return await answering


class Half:
    """A source that gives half of a version away, and then lets somebody come to an end."""

    address = ""

    def __init__(self, trainer: Trainer) -> None:
        self._source = trainer.weight_source()
        self._then: Callable[[], None] | None = None
        self._here = asyncio.Event()

    async def serve(self, stack: AsyncExitStack) -> None:
        server = RpcServer.listen("127.0.0.1", 0)
        await server.start()
        await server.serve(weights_service.add_to_server(self, server.server, server.gate))
        stack.push_async_callback(server.stop, 0)
        self._at = GrpcWeightSource(server.address)
        stack.push_async_callback(self._at.close)

    async def give(self, update: Callable[..., Any], arguments: tuple[Any, ...], then: Callable[[], None]) -> Any:
        self._then = then
        sync_id, _, *others = arguments
        return await update(sync_id, self._at, *others)

    async def get_manifest(self) -> WeightsManifest:
        return await self._source.get_manifest()

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        async for chunk in self._source.stream_weights(version, names):
            yield chunk
            if self._then is not None:
                self._then()
                self._then = None
            await asyncio.Event().wait()


class Fleet:
    """The controller's side of real servers, with a trainer in this process."""

    def __init__(self, tiny: Path, folder: Path, stack: AsyncExitStack) -> None:
        self._tiny = tiny
        self._folder = folder
        self._stack = stack
        self.servers: dict[str, Server] = {}
        self.rollouts: dict[str, Any] = {}

    async def start(self, doomed: list[str], end: Callable[[int], None], deadline_s: float) -> None:
        self.trainer = Trainer(options_for(self._tiny), make_backend)
        self._stack.callback(self.trainer.close)
        policy = await Form("grpc", self._stack).policy(self.trainer)
        half = Half(self.trainer)
        await half.serve(self._stack)
        self.servers = await start_servers(self._tiny, [*SURVIVORS, *doomed])
        self._stack.push_async_callback(stop_servers, self.servers)
        for name, server in self.servers.items():
            self.rollouts[name] = Doomed(server, end, half) if name in doomed else server.client
        config = Config().with_values({"argosy.rpc.deadline_s": deadline_s, "argosy.weight_sync.transport": "stream"})
        services = Services(self.rollouts, None, policy, None)  # type: ignore[arg-type]
        ledger = Ledger(self._folder / "ledger", 1)
        self._stack.callback(ledger.close)
        self.ctx = RunContext(config, "run", 1, services, ledger, MemoryMembership())
        self.stage = RolloutStage(self.ctx)
        self._stack.push_async_callback(self.stage.turns.close)

    async def first_sync(self) -> PolicyVersion:
        """In which nobody dies."""
        doomed = [one for one in self.rollouts.values() if isinstance(one, Doomed)]
        for one in doomed:
            one.armed = False
        version = await publish_and_sync(self.ctx, self.stage, 0)
        assert await self.versions(list(self.servers)) == {version}
        for one in doomed:
            one.armed = True
        return version

    async def train_and_sync(self, step: int) -> tuple[PolicyVersion, float]:
        await self.trainer.update(grouped_batch(), UpdateConfig(LossConfig(), mini_batch_size=12), mutation())
        begun = time.monotonic()
        async with asyncio.timeout(GUARD_S):
            version = await publish_and_sync(self.ctx, self.stage, step)
        return version, time.monotonic() - begun

    async def versions(self, names: list[str]) -> set[PolicyVersion | None]:
        return {(await self.servers[name].client.status()).version for name in names}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), seed=1, weight_scale=4.0)


@pytest.fixture
async def fleet(tiny: Path, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(tiny, tmp_path, stack)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def test_d10_d11_servers_killed_before_during_and_after_each_phase(fleet: Fleet) -> None:
    """All others have the new version; a replacement takes it from one of those before it serves anything."""
    await fleet.start(KILLED, kill, deadline_s=GUARD_S)
    await fleet.first_sync()
    version, _ = await fleet.train_and_sync(1)
    assert await fleet.versions(SURVIVORS) == {version}
    assert set(SURVIVORS) <= fleet.stage.usable
    dead = {name for name in KILLED if not fleet.servers[name].process.is_alive()}
    assert dead == set(KILLED)
    assert not (dead - {"finish-during", "finish-after"}) & fleet.stage.usable
    answers = await collect(fleet.rollouts["s0"], [request(0)])
    assert {run.version for one in answers.values() for run in one.versions} == {version}

    # The trainer goes on, so that only the servers have the version; the newcomer sorts before all others.
    await fleet.trainer.update(grouped_batch(), UpdateConfig(LossConfig(), mini_batch_size=12), mutation())
    await fleet.trainer.publish_weights("l0", 2, mutation())
    newcomers = await start_servers(fleet._tiny, ["a0", "a1"])
    fleet.servers |= newcomers
    fleet._stack.push_async_callback(stop_servers, newcomers)
    for name, server in newcomers.items():
        fleet.rollouts[name] = server.client
        fleet.stage.joins(name)
        with pytest.raises(StateError, match="no current weights"):
            await collect(server.client, [request(0)])
    async with asyncio.timeout(GUARD_S):
        await asyncio.gather(*(catch_up(fleet.ctx, fleet.stage, name) for name in newcomers))
    for name, server in newcomers.items():
        assert await fleet.stage.take_in(name)
        answers = await collect(server.client, [request(0)])
        assert {run.version for one in answers.values() for run in one.versions} == {version}


async def test_d10_frozen_servers_cost_one_sync_its_deadline_and_the_next_nothing(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that wake up again are caught up, and serve nothing for the run before."""
    deadline_s = 10.0
    await fleet.start(FROZEN, freeze, deadline_s)
    old = await fleet.first_sync()
    with caplog.at_level(logging.WARNING, logger="argosy.controller.stages.stragglers"):
        version, seconds = await fleet.train_and_sync(1)
    assert seconds < deadline_s + 20, "a guard against hanging; it is about the deadline itself"
    assert await fleet.versions(SURVIVORS) == {version}
    assert fleet.stage.usable == set(SURVIVORS)
    told = [one.getMessage() for one in caplog.records if one.name.endswith("stragglers")]
    assert sorted(line.split()[0] for line in told) == sorted(FROZEN), "one line for each"
    assert not [line for line in told if "\n" in line]
    asked = {name: fleet.rollouts[name].asked for name in FROZEN}
    version, _ = await fleet.train_and_sync(2)
    assert asked == {name: fleet.rollouts[name].asked for name in FROZEN}, "they were not even asked"
    assert await fleet.versions(SURVIVORS) == {version}

    for name in FROZEN:
        os.kill(fleet.servers[name].pid, signal.SIGCONT)
    async with asyncio.timeout(GUARD_S):
        while fleet.stage.usable != {*SURVIVORS, *FROZEN}:
            await asyncio.sleep(0.05)
            for name in set(FROZEN) & fleet.stage.usable:
                assert await fleet.versions([name]) == {version}
            assert await fleet.versions([n for n in FROZEN if n not in fleet.stage.usable]) <= {old, version}
    version, _ = await fleet.train_and_sync(3)
    assert await fleet.versions(list(fleet.servers)) == {version}
