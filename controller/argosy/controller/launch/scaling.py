"""`argosy scale`: other numbers of rollout and reward servers on this machine, while the run goes on."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from argosy.config import Config
from argosy.config.schema import DEFAULT_POOL
from argosy.controller.launch.plan import PlannedMember, plan_member
from argosy.controller.roster import keeps_servers
from argosy.types.errors import InvalidInputError, StateError
from argosy.types.records import ScaleChange, ServerCount

_LOG = logging.getLogger(__name__)

MAX_SERVERS = 256
"""Of one pool or reward service on one machine."""
_SCALED = ("rollout", "reward")


class Scaling:
    """Starts servers, and drains those with the highest numbers first.

    A server that drains keeps its id until it has ended: one that is started meanwhile gets another. So do servers that
    others have started.

    Args:
        cfg: Of the run.
        planned: The launcher's children, of any role; changed in place.
        start: Starts one.
        retire: Drains one, and returns when it has ended.
        claim: Takes the first of these names that nobody in the fleet has: servers may have joined by hand.
    """

    def __init__(
        self,
        cfg: Config,
        planned: list[PlannedMember],
        start: Callable[[PlannedMember], Awaitable[None]],
        retire: Callable[[str], Awaitable[None]],
        claim: Callable[[Iterable[str]], Awaitable[str]],
    ) -> None:
        self._cfg = cfg
        self._planned = planned
        self._start = start
        self._retire = retire
        self._claim = claim
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()

    async def scale(self, wanted: Sequence[ServerCount]) -> list[ScaleChange]:
        """Returns when all that is to end has been told so, and all that is new has been started; neither is done then.

        Raises InvalidInputError or StateError, with nothing changed, where one of the numbers can't be, and
        UnavailableError where etcd is away.
        """
        counts = [self._checked(one) for one in wanted]
        named = [(one.role, one.pool) for one in counts]
        if twice := next((one for one in named if named.count(one) > 1), None):
            raise InvalidInputError(f"{twice[0]} of {twice[1]!r} is given two numbers", field="wanted")
        async with self._changing:
            new = [await self._claimed(one) for one in counts]
            return [await self._change(one, missing) for one, missing in zip(counts, new, strict=True)]

    async def close(self) -> None:
        """Leave what drains to the launcher, which ends everything now."""
        for task in self._draining.values():
            task.cancel()
        await asyncio.gather(*self._draining.values(), return_exceptions=True)

    def _servers(self, role: str, pool: str) -> list[PlannedMember]:
        """Those that are to stay, in the order of their numbers."""
        return [
            one for one in self._planned if (one.role, one.pool) == (role, pool) and one.member_id not in self._draining
        ]

    async def _change(self, wanted: ServerCount, missing: Sequence[PlannedMember]) -> ScaleChange:
        servers = self._servers(wanted.role, wanted.pool)
        ended = servers[wanted.count :]
        started: list[str] = []
        for member in reversed(ended):
            self._draining[member.member_id] = asyncio.create_task(
                self._drain(member), name=f"drain {member.member_id}"
            )
        for member in missing:
            self._planned.append(member)
            await self._start(member)
            started.append(member.member_id)
        _LOG.info("%s of %s: from %d servers to %d", wanted.role, wanted.pool, len(servers), wanted.count)
        return ScaleChange(
            wanted.role, wanted.pool, len(servers), wanted.count, tuple(started), tuple(one.member_id for one in ended)
        )

    async def _claimed(self, wanted: ServerCount) -> list[PlannedMember]:
        """Those that are missing, each with the first number that nobody has."""
        role, pool = wanted.role, wanted.pool
        taken = {one.member_id for one in self._planned}
        planned = (plan_member(self._cfg, role, pool, number).member_id for number in itertools.count())
        free = (name for name in planned if name not in taken)  # one name is never asked for twice
        missing = wanted.count - len(self._servers(role, pool))
        names = [await self._claim(free) for _ in range(missing)]
        return [plan_member(self._cfg, role, pool, int(name.rpartition("-")[2])) for name in names]

    async def _drain(self, member: PlannedMember) -> None:
        try:
            await self._retire(member.member_id)
        finally:
            self._planned.remove(member)
            del self._draining[member.member_id]

    def _checked(self, wanted: ServerCount) -> ServerCount:
        """With the pool's name filled in."""
        role, count = wanted.role, wanted.count
        if role not in _SCALED:
            raise InvalidInputError(
                f"{role!r} can't be scaled: got {role}={count}; wants rollout or reward servers", field="wanted"
            )
        pool = self._pool_of(wanted)
        least = 1
        if not least <= count <= MAX_SERVERS:
            raise InvalidInputError(f"{role}: got {count}; wants {least} to {MAX_SERVERS} servers", field="wanted")
        if role == "rollout" and keeps_servers(self._cfg):
            key = "argosy.deterministic" if self._cfg.argosy.deterministic else "argosy.colocated"
            raise StateError(
                f"a run with {key}=true keeps the rollout servers that it began with: "
                + ("which server samples what must not change" if "det" in key else "each shares the trainer's devices")
            )
        if self._cfg.argosy.replay.path is not None:
            raise StateError(f"this run replays a record: it has no {role} servers")
        return ServerCount(role, count, pool)

    def _pool_of(self, wanted: ServerCount) -> str:
        """Raises InvalidInputError where there is none of that name, StateError where others start its servers."""
        role, cfg = wanted.role, self._cfg
        named = cfg.argosy.pools if role == "rollout" else cfg.argosy.reward.services
        pools = sorted(named) if named else [DEFAULT_POOL]
        what = "pool" if role == "rollout" else "reward service"
        pool = wanted.pool or (pools[0] if len(pools) == 1 else "")
        if pool not in pools:
            got = f"there is no {what} {pool!r}" if pool else f"it isn't clear which {what} is meant"
            forms = ", ".join(f"{role}/{name}={wanted.count}" for name in pools) if named else f"{role}={wanted.count}"
            raise InvalidInputError(f"{got}; wants {forms}", field="wanted")
        if not named:
            return pool
        if role == "rollout" and cfg.pools[pool].remote:
            raise StateError(
                f"pool {pool!r} is remote: start and stop its servers where they run (argosy serve rollout)"
            )
        if role == "reward" and (cfg.rewards[pool].remote or cfg.rewards[pool].address):
            raise StateError(f"the servers of reward service {pool!r} are started elsewhere: so scale it there")
        return pool
