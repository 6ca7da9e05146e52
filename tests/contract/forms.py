"""What the contract tests share: requests, mutations, and the two forms of each role."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from argosy.roles.policy import Critic, Policy
from argosy.roles.reference import Reference
from argosy.roles.reward import Reward
from argosy.roles.rollout import Rollout
from argosy.roles.weights import WeightSource
from argosy.rpc import weights_service
from argosy.rpc.clients.critic import CriticClient
from argosy.rpc.clients.policy import PolicyClient
from argosy.rpc.clients.reference import ReferenceClient
from argosy.rpc.clients.reward import RewardClient
from argosy.rpc.clients.rollout import RolloutClient
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.gate import Gate
from argosy.rpc.options import RpcOptions
from argosy.rpc.server import RpcServer
from argosy.types.ids import SampleId
from argosy.types.records import Completion, GenerateRequest, Mutation, RolloutStatus, SamplingParams

MakeRollout = Callable[..., Any]
Client = TypeVar("Client", RolloutClient, PolicyClient, CriticClient, ReferenceClient, RewardClient, GrpcWeightSource)

RUN = "run-1"
DEADLINE_S = 60.0

_request_numbers = itertools.count()


def mutation(
    request_id: str = "", *, term: int = 1, expected_step: int | None = None, deadline_s: float = DEADLINE_S
) -> Mutation:
    """A mutation of the test's run; without an id, one that was never used."""
    return Mutation(RUN, term, request_id or f"{RUN}/{next(_request_numbers)}", deadline_s, expected_step)


def request(
    position: int, k: int = 0, *, prompt: Sequence[int] = (1, 40, 41, 42), purpose: str = "train", **params: Any
) -> GenerateRequest:
    """A sample of a short prompt; the position is part of the prompt, so that positions differ."""
    sampling = SamplingParams(**({"max_tokens": 12, "seed": 5, "ignore_eos": True} | params))
    return GenerateRequest(SampleId(0, position, k), (*prompt, 50 + position), sampling, purpose)


async def collect(rollout: Rollout, requests: Sequence[GenerateRequest]) -> dict[str, Completion]:
    """Everything that `generate` yields, by key; exactly one answer per request."""
    found: dict[str, Completion] = {}
    async for completion in rollout.generate(requests, deadline_s=DEADLINE_S):
        key = f"{completion.purpose}:{completion.sample_id}"
        assert key not in found
        found[key] = completion
    assert found.keys() == {one.key for one in requests}
    return found


class Form:
    """How a test reaches the cores that it makes: directly, or by gRPC."""

    def __init__(self, name: str, stack: AsyncExitStack) -> None:
        self.name = name
        self.stack = stack
        self.gates: list[Gate] = []
        self.servers: list[RpcServer] = []

    @property
    def remote(self) -> bool:
        return self.name == "grpc"

    async def rollout(self, core: Any) -> Rollout:
        from argosy.rollout.service import add_to_server

        if not self.remote:
            return core  # type: ignore[no-any-return]
        address = await self.serve(lambda server, gate: add_to_server(core, server, gate, interval_tokens=3))
        return await self._closed_later(RolloutClient(address))

    async def policy(self, core: Any) -> Policy:
        from argosy.trainer.service import add_to_server

        if not self.remote:
            return core  # type: ignore[no-any-return]
        address = await self.serve(lambda server, gate: add_to_server(core, server, gate))
        return await self._closed_later(PolicyClient(address))

    async def critic(self, core: Any) -> Critic:
        from argosy.trainer.service import add_to_server

        if not self.remote:
            return core  # type: ignore[no-any-return]
        return await self._closed_later(
            CriticClient(await self.serve(lambda server, gate: add_to_server(core, server, gate)))
        )

    async def reference(self, core: Any) -> Reference:
        from argosy.reference.service import add_to_server

        if not self.remote:
            return core  # type: ignore[no-any-return]
        return await self._closed_later(
            ReferenceClient(await self.serve(lambda server, gate: add_to_server(core, server, gate)))
        )

    async def reward(self, core: Any) -> Reward:
        from argosy.reward.service import add_to_server

        if not self.remote:
            return core  # type: ignore[no-any-return]
        return await self._closed_later(
            RewardClient(await self.serve(lambda server, gate: add_to_server(core, server, gate)))
        )

    async def source(self, source: WeightSource) -> WeightSource:
        if not self.remote:
            return source
        return await self._closed_later(
            GrpcWeightSource(await self.serve(lambda server, gate: weights_service.add_to_server(source, server, gate)))
        )

    async def serve(self, add: Callable[[Any, Gate], list[str]]) -> str:
        """A server of its own for each service; returns its address."""
        gate = Gate(f"member-{len(self.gates)}")
        server = RpcServer.listen("127.0.0.1", 0, gate=gate, options=RpcOptions(keepalive_time_s=5))
        await server.start()
        await server.serve(add(server.server, gate))
        self.gates.append(gate)
        self.servers.append(server)
        self.stack.push_async_callback(server.stop, 0)
        return server.address

    async def _closed_later(self, client: Client) -> Client:
        self.stack.push_async_callback(client.close)
        return client


async def until(rollout: Rollout, condition: Callable[[RolloutStatus], bool]) -> None:
    """Wait for a status, at most a few seconds."""
    async with asyncio.timeout(20):
        while not condition(await rollout.status()):  # noqa: ASYNC110 - its events are another process's
            await asyncio.sleep(0.005)
