"""The rollout servers as the loop sees them: who gets samples, who is away, and turns on shared devices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence, Set

from argosy.controller.context import RunContext
from argosy.controller.stages.capacity import Capacities
from argosy.controller.stages.turns import Turns
from argosy.roles.rollout import Rollout
from argosy.types.errors import ArgosyError, ConfigError, DeadlineError, StateError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import RolloutStatus

log = logging.getLogger(__name__)

AWAY = (UnavailableError, DeadlineError, StateError)
"""What one server's answer may be without being the run's loss: gone, stuck, or draining, stale, asleep."""
KEEPS_WEIGHTS = 1
"""The level of sleep after which a server goes on as it was."""


class RolloutFleet:
    """Which servers are usable, and what they are told together."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self.usable: set[str] = set(ctx.services.rollouts)
        """Members that answer; one that failed comes back when it answers again with the current weights, and one that
        has joined comes in when it holds them."""
        self._unproven: set[str] = set()
        """Members that turned requests away (they take weights while they drain), and those that have joined (one that
        took weights may have died since, and another life of it be here): what they say of themselves counts."""
        self._leaving: set[str] = set()
        """Members that drain: they finish what they can, and get nothing new, no weights either."""
        self.version: PolicyVersion | None = None
        """What the members must hold; set by the weight sync."""
        self.turns = Turns()
        """Of those who bring weights to members: a sync of all, or of one that has joined or was away."""
        self._changed = asyncio.Event()
        """Set when a member comes into use, and when there are new weights; for those who wait for that."""
        self._capacities = Capacities(ctx.services.pools)
        self._colocated = ctx.config.argosy.colocated
        self._asleep = False
        self._turns = 0

    def members(self) -> list[str]:
        """Every rollout server that is there to stay, in order."""
        gone = self._ctx.services.lost
        self.usable -= gone
        return sorted(set(self._ctx.services.rollouts) - gone - self._leaving)

    def in_use(self) -> list[str]:
        """The members that get samples, in order."""
        return [member for member in self.members() if member in self.usable]

    def is_usable(self, member: str) -> bool:
        """Whether it gets samples."""
        return member in self.usable and member not in self._ctx.services.lost

    @property
    def any_usable(self) -> bool:
        """Whether anybody gets samples."""
        return not self.usable <= self._ctx.services.lost

    def joins(self, member: str) -> None:
        """It is there, and not in use before it has said that it holds the current weights."""
        self.usable.discard(member)
        self._unproven.add(member)

    def drains(self, member: str) -> None:
        """It is about to leave: it may finish what it has."""
        self.usable.discard(member)
        self._leaving.add(member)

    def forget(self, member: str) -> None:
        """It has left; whoever comes under this id is another one."""
        self.usable.discard(member)
        self._leaving.discard(member)
        self._unproven.discard(member)
        self._capacities.forget(member)

    async def has_version(self) -> None:
        """Return when it is known what the members must hold: after the first sync."""
        while self.version is None:
            self._changed.clear()
            await self._changed.wait()

    async def wait_for_joiner(self) -> bool:
        """Whether it makes sense to go on: somebody is in use, or came into use in the time that a start may take
        (argosy.startup_timeout_s). True too where nobody can come, so that nobody waits: servers may be back."""
        if self.in_use() or not self._ctx.services.takes_joiners:
            return True
        patience_s = self._ctx.config.argosy.startup_timeout_s
        log.warning("no rollout server is in use; waiting %g s for one to join or to come back", patience_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self.in_use():
                    self._changed.clear()
                    await self._changed.wait()
        return bool(self.in_use())

    async def check_sleep(self) -> None:
        """Refuse, before the first token, servers that can't sleep as a colocated run needs it. Raises ConfigError."""
        if not self._colocated:
            return
        level, members = str(self._ctx.config.argosy.sleep_level), self.members()
        for member, status in zip(members, await self._ask(members), strict=True):
            levels = "" if status is None else status.capabilities.get("sleep_levels", "")
            if status is not None and level not in levels.split(","):
                raise ConfigError(
                    f"argosy.sleep_level: got {level} with argosy.colocated=true; the engine {status.engine} of "
                    f"{member} can {f'sleep at {levels}' if levels else 'not sleep'} on its device"
                )

    async def sleep(self, step: int) -> None:
        """Let every server free the devices that the trainer needs too, if they are shared. Nothing is in flight."""
        await self._lie_down(self._ctx.config.argosy.sleep_level, "sleep", step)

    async def wake(self, step: int) -> None:
        """Let the servers take their memory again, before new weights come; trainers have left the devices by then."""
        await self._get_up("wake", step)

    async def stand_aside(self, step: int) -> None:
        """Let the trainer have shared devices between a sync and the next generation; the weights are kept."""
        await self._lie_down(KEEPS_WEIGHTS, "stand-aside", step)

    async def come_back(self, step: int) -> None:
        """End `stand_aside`: the trainer leaves the devices, the servers wake up."""
        await self._get_up("come-back", step)

    async def _lie_down(self, level: int, why: str, step: int) -> None:
        ctx = self._ctx
        if self._colocated and not self._asleep:
            await self._each(lambda name, server: server.sleep(level, ctx.mutation(why, ctx.term, step, name)))
            self._asleep = True

    async def _get_up(self, why: str, step: int) -> None:
        ctx = self._ctx
        if self._asleep:
            await self.clear_devices()
            await self._each(lambda name, server: server.wake(ctx.mutation(why, ctx.term, step, name)))
            self._asleep = False

    async def clear_devices(self) -> None:
        """Let the trainers leave devices that are shared. They come back by themselves when they compute."""
        if self._colocated:
            self._turns += 1
            trainers = {"actor": self._ctx.services.policy, "critic": self._ctx.services.critic}
            async with asyncio.TaskGroup() as calls:
                for name, trainer in trainers.items():
                    if trainer is not None:
                        ctx = self._ctx.mutation("offload", self._ctx.term, self._turns, name)
                        calls.create_task(trainer.offload(ctx))

    async def _each(self, call: Callable[[str, Rollout], Awaitable[None]]) -> None:
        """Call every server that is usable; one that can't be reached no longer is."""

        async def reach(member: str) -> None:
            try:
                await call(member, self._ctx.services.rollouts[member])
            except AWAY as error:
                log.warning("%s: %s", member, error)
                self.usable.discard(member)

        async with asyncio.TaskGroup() as calls:
            for member in self.in_use():
                calls.create_task(reach(member))

    async def synced(self, members: Sequence[str], version: PolicyVersion) -> None:
        """These took the weights that all must hold from now on, and are used; one that had turned requests away only
        if it says that it is ready (a server that drains takes weights too)."""
        self.version = version
        self._changed.set()
        there = set(members) & set(self.members())  # one may have left, or drain, since its weights came
        self._use(there - self._unproven)
        await self._take_back([member for member in members if member in self._unproven])

    def refused(self, member: str, error: StateError) -> None:
        """It drains, or its weights are being replaced: others may be ready."""
        log.warning("%s takes no samples: %s", member, error)
        self.usable.discard(member)
        self._unproven.add(member)

    async def take_in(self, member: str) -> bool:
        """Use a member if it answers that it is ready with the current weights; whether it is used now."""
        await self._take_back([member])
        return member in self.usable

    async def readmit(self) -> None:
        """Take members back that were cut off for a moment: they answer, and hold the current weights."""
        await self._take_back([member for member in self.members() if member not in self.usable])

    async def _take_back(self, members: Sequence[str]) -> None:
        for member, status in zip(members, await self._ask(members), strict=True):
            current = status is not None and status.state == "ready" and status.version == self.version
            if current and member in self.members():
                self._use({member})
                self._unproven.discard(member)

    def _use(self, members: Set[str]) -> None:
        self.usable |= members
        if members:
            self._changed.set()

    async def learn_slots(self, members: Sequence[str]) -> None:
        """Ask those whose numbers of slots are not known."""
        unknown = [member for member in members if not self._capacities.knows(member)]
        for member, status in zip(unknown, await self._ask(unknown), strict=True):
            if status is not None:
                self._capacities.set_slots(member, status.slot_count)

    def begin_one(self, member: str) -> None:
        """It gets a training sample, by itself."""
        self._capacities.begin_one(member, asyncio.get_running_loop().time())

    def end_one(self, member: str, token_count: int, *, finished: bool) -> None:
        """It is done with one, for which it made so many tokens."""
        self._capacities.end_one(member, asyncio.get_running_loop().time(), token_count, finished=finished)

    def slots(self, member: str) -> int:
        """Samples that it runs at once; 1 while that isn't known."""
        return self._capacities.slots(member)

    async def _ask(self, members: Sequence[str]) -> list[RolloutStatus | None]:
        """The status of each; None of one that doesn't answer."""

        async def ask(member: str) -> RolloutStatus | None:
            try:
                return await self._ctx.services.rollouts[member].status()
            except ArgosyError as error:  # whatever it is, this server's answer is not the run's loss
                log.info("%s is away: %s", member, error)
                return None

        return list(await asyncio.gather(*(ask(member) for member in members)))
