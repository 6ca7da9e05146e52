"""From the configuration and membership to a router: who the servers of each reward service are, now and later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from argosy.config import Config
from argosy.controller.rewards.alike import difference
from argosy.controller.rewards.replicas import ReplicaSet
from argosy.controller.rewards.router import RewardRouter, RoutedService
from argosy.membership.interface import Membership
from argosy.roles.reward import Reward
from argosy.rpc.channel import open_channel
from argosy.rpc.clients.reward import RewardClient
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import NO_RETRY, RetryPolicy
from argosy.types.errors import ArgosyError, ConfigError, UnavailableError
from argosy.types.records import Member, MemberState, RewardCapabilities

log = logging.getLogger(__name__)

_EXTERNAL_S = 30.0
"""An external server that doesn't answer for so long at the start is taken for not there."""
_POLL_S = 0.2
_CALL_S = 5.0


@asynccontextmanager
async def open_router(
    config: Config,
    options: RpcOptions,
    policy: RetryPolicy,
    *,
    membership: Membership | None = None,
    cores: Mapping[str, Reward] | None = None,
) -> AsyncIterator[RewardRouter]:
    """Over the servers of membership, which come and go; those with an address, which others run; and cores here.

    `cores`: By name of their service, where this process holds them. Raises ConfigError that names each service that
    doesn't say what it can do.
    """
    attempts = config.argosy.reward.sample_attempts
    sets = {name: ReplicaSet(name, policy=policy, sample_attempts=attempts) for name in config.rewards}
    servers = _Servers({name: sets[name] for name, one in config.rewards.items() if not one.address}, options)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(servers.close)
        for name, core in (cores or {}).items():
            sets[name].add(name, core)
        for name, service in config.rewards.items():
            for address in service.address:
                client = RewardClient(address, member_id=name, options=options, policy=NO_RETRY)
                stack.push_async_callback(client.close)
                sets[name].add(address, client)
        following: asyncio.Task[None] | None = None
        if membership is not None:
            await servers.update(await membership.members("reward"))
            following = asyncio.create_task(servers.follow(membership), name="follow reward servers")
            stack.push_async_callback(_cancelled, following)
        router = RewardRouter(
            [RoutedService(sets[name], service, _scorer(config, name)) for name, service in config.rewards.items()],
            error_window=config.argosy.reward.error_window,
            following=following,
        )
        await router.start()
        yield router


def _scorer(config: Config, name: str) -> str:
    if config.rewards[name].address:
        return ""
    own = config.for_reward(name)
    return "function" if own.custom_reward_function.path is not None else own.reward_kind


async def _cancelled(task: asyncio.Task[None]) -> None:
    """End a task that runs until it is cancelled; one that ended by itself raises why."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class _Servers:
    """The servers that are members of the fleet, as connections in the replica sets."""

    def __init__(self, sets: Mapping[str, ReplicaSet], options: RpcOptions) -> None:
        self._sets = sets
        self._options = options
        self._clients: dict[str, tuple[Member, RewardClient]] = {}

    async def follow(self, membership: Membership) -> None:
        """Keep up with membership until cancelled."""
        async for snapshot in membership.watch("reward"):
            await self.update(snapshot)

    async def update(self, snapshot: Sequence[Member]) -> None:
        """Take in who is there now. A server that drains gets nothing new, and may finish what it has."""
        there = {one.member_id: one for one in snapshot if one.pool in self._sets}
        for member_id, (known, client) in list(self._clients.items()):
            now = there.get(member_id)
            same_life = now is not None and (now.incarnation, now.address) == (known.incarnation, known.address)
            if now is not None and same_life and now.state is MemberState.READY:
                continue
            if member_id in self._sets[known.pool].keys:
                log.info("reward server %s leaves service %s", member_id, known.pool)
                self._sets[known.pool].remove(member_id)
            if not same_life:
                del self._clients[member_id]
                await client.close()
        for member in there.values():
            if member.state is MemberState.READY and member.member_id not in self._sets[member.pool].keys:
                self._join(member)

    def _join(self, member: Member) -> None:
        if member.member_id not in self._clients:
            client = RewardClient(member.address, member_id=member.member_id, options=self._options, policy=NO_RETRY)
            self._clients[member.member_id] = (member, client)
        log.info("reward server %s at %s joins service %s", member.member_id, member.address, member.pool)
        self._sets[member.pool].add(member.member_id, self._clients[member.member_id][1])

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(client.close() for _, client in self._clients.values()))
        self._clients.clear()


async def check_external(config: Config, options: RpcOptions) -> None:
    """Each external server must be up and say what it can do, and replicas must be alike; before anything starts.

    Raises ConfigError that names each that isn't there or is no reward service.
    """
    timeout_s = min(_EXTERNAL_S, config.argosy.startup_timeout_s)
    addresses = [(name, address) for name, service in config.rewards.items() for address in service.address]
    answers = await asyncio.gather(*(_ask(address, options, timeout_s) for _, address in addresses))
    problems: list[str] = []
    first: dict[str, tuple[str, RewardCapabilities]] = {}
    for (name, address), answer in zip(addresses, answers, strict=True):
        path = f"argosy.reward.services.{name}.address"
        if isinstance(answer, str):
            problems.append(f"{path}: {address} {answer}")
            continue
        known_address, known = first.setdefault(name, (address, answer))
        other = difference(answer, known, address, known_address)
        if other:
            problems.append(f"{path}: {other}: they can't stand in for each other")
    if problems:
        raise ConfigError("\n".join(problems))


async def _ask(address: str, options: RpcOptions, timeout_s: float) -> RewardCapabilities | str:
    """What the server can do, or why it isn't one; waits for one that is just starting."""
    end = asyncio.get_running_loop().time() + timeout_s
    client = RewardClient(address, member_id="reward", options=options, policy=NO_RETRY)
    try:
        while True:
            try:
                async with asyncio.timeout(_CALL_S):
                    await _check_health(address, options)
                    return await client.capabilities()
            except (UnavailableError, TimeoutError) as error:
                if asyncio.get_running_loop().time() + _POLL_S >= end:
                    return f"doesn't answer within {timeout_s:g} s: {error or 'silence'}"
            except ArgosyError as error:
                return f"is no reward service that can be used: {error.message}"
            await asyncio.sleep(_POLL_S)
    finally:
        await client.close()


async def _check_health(address: str, options: RpcOptions) -> None:
    """Raises UnavailableError unless the server says SERVING. One without a health service is asked no further."""
    async with open_channel(address, options) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack the methods
        with suppress(grpc.aio.AioRpcError):  # not there: the next call says so in more words
            answer = await stub.Check(health_pb2.HealthCheckRequest())
            status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
            if status != "SERVING":
                raise UnavailableError(f"its health is {status}")
