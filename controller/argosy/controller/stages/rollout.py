"""Generation: requests are spread over the rollout servers, and a lost server's partial answers go on elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from argosy.controller.context import RunContext
from argosy.controller.stages.capacity import Capacities
from argosy.roles.rollout import Rollout
from argosy.types.errors import ConfigError, DeadlineError, OverloadedError, StateError, UnavailableError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, Generated, GenerateRequest, RolloutStatus

log = logging.getLogger(__name__)

Sink = Callable[[Completion], Awaitable[None]]

MAX_ROUNDS = 5
"""How often the rest of a batch is dispatched before the run gives up on it."""
ROUND_PAUSE_S = 0.5
AWAY = (UnavailableError, DeadlineError, StateError)
"""What one server's answer may be without being the run's loss: gone, stuck, or draining, stale, asleep."""
KEEPS_WEIGHTS = 1
"""The level of sleep after which a server goes on as it was."""


class RolloutStage:
    """Dispatches batches of requests to the servers that hold the current weights."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self.usable: set[str] = set(ctx.services.rollouts)
        """Members that answer; one that failed comes back when it answers again with the current weights."""
        self._refusing: set[str] = set()
        """Members that turned requests away: they take weights, and yet a sync alone doesn't bring them back."""
        self.version: PolicyVersion | None = None
        """What the members must hold; set by the weight sync."""
        self._capacities = Capacities(ctx.services.pools)
        self._even = ctx.config.argosy.deterministic
        """Shares must not depend on how fast servers are."""
        self._colocated = ctx.config.argosy.colocated
        self._asleep = False
        self._turns = 0

    def members(self) -> list[str]:
        """Every rollout server that isn't gone for good, in order."""
        gone = self._ctx.services.lost
        self.usable -= gone
        return sorted(set(self._ctx.services.rollouts) - gone)

    def in_use(self) -> list[str]:
        """The members that get samples, in order."""
        return [member for member in self.members() if member in self.usable]

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
            await self._clear_devices()
            await self._each(lambda name, server: server.wake(ctx.mutation(why, ctx.term, step, name)))
            self._asleep = False

    async def _clear_devices(self) -> None:
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
        self.usable |= set(members) - self._refusing
        await self._take_back([member for member in members if member in self._refusing])

    def metrics(self) -> dict[str, float]:
        """What each pool did for training since the last call."""
        return self._capacities.metrics(self.in_use())

    async def generate(self, requests: Sequence[GenerateRequest], sink: Sink) -> None:
        """Hand each request's completion to `sink`, exactly once, as it ends.

        Raises UnavailableError when samples are still missing after the bounded rounds of re-dispatch.
        """
        await self._clear_devices()
        waiting = {request.sample_id: request for request in requests}
        failure: Exception | None = None
        for round_number in range(MAX_ROUNDS):
            if not waiting:
                return
            if round_number:
                self._ctx.count("rollout/redispatched_samples", len(waiting))
                log.warning("dispatching %d samples again (%s)", len(waiting), failure)
                await asyncio.sleep(ROUND_PAUSE_S * round_number)
                await self._readmit()
            failure = await self._round(waiting, sink) or failure
        if waiting:
            raise UnavailableError(
                f"{len(waiting)} of {len(requests)} samples could not be generated in {MAX_ROUNDS} rounds; "
                f"the last failure was: {failure}"
            )

    async def _round(self, waiting: dict[SampleId, GenerateRequest], sink: Sink) -> Exception | None:
        usable = self.in_use()
        await self._learn_slots(usable)
        weights = dict.fromkeys(usable, 1.0) if self._even else self._capacities.weights(usable)
        shares = assign_groups(list(waiting.values()), weights)
        if not shares:
            return UnavailableError("no rollout server is usable")
        async with asyncio.TaskGroup() as group:  # an exception of one ends the others before it is raised
            serving = [group.create_task(self._serve(member, share, waiting, sink)) for member, share in shares.items()]
        return next((failure for task in serving if (failure := task.result()) is not None), None)

    async def _readmit(self) -> None:
        """Take members back that were cut off for a moment: they answer, and hold the current weights."""
        await self._take_back([member for member in self.members() if member not in self.usable])

    async def _take_back(self, members: Sequence[str]) -> None:
        for member, status in zip(members, await self._ask(members), strict=True):
            if status is not None and status.state == "ready" and status.version == self.version:
                self.usable.add(member)
                self._refusing.discard(member)

    async def _learn_slots(self, members: Sequence[str]) -> None:
        """Once for each server, where there are several."""
        unknown = [member for member in members if not self._capacities.knows(member)] if len(members) > 1 else []
        for member, status in zip(unknown, await self._ask(unknown), strict=True):
            self._capacities.set_slots(member, 1 if status is None else status.slot_count)

    async def _ask(self, members: Sequence[str]) -> list[RolloutStatus | None]:
        """The status of each; None of one that doesn't answer."""

        async def ask(member: str) -> RolloutStatus | None:
            try:
                return await self._ctx.services.rollouts[member].status()
            except AWAY as error:
                log.info("%s is away: %s", member, error)
                return None

        return list(await asyncio.gather(*(ask(member) for member in members)))

    async def _serve(
        self, member: str, share: Sequence[GenerateRequest], waiting: dict[SampleId, GenerateRequest], sink: Sink
    ) -> Exception | None:
        ctx = self._ctx
        if share[0].purpose == "train":
            ctx.ledger.dispatched([request.sample_id for request in share], member)
        failure: Exception | None = None
        done = self._capacities.begin(member, share)
        try:
            async for completion in ctx.services.rollouts[member].generate(share, deadline_s=ctx.deadline_s):
                request = waiting[completion.sample_id]
                done.take(completion, request.key)
                if completion.finish_reason in (FinishReason.FAILED, FinishReason.ABORTED):
                    waiting[completion.sample_id] = continue_from(request, completion)
                    failure = UnavailableError(f"{member}: {completion.error or completion.finish_reason.value}")
                else:
                    await sink(completion)
                    del waiting[completion.sample_id]
        except UnavailableError as error:
            self.usable.discard(member)
            failure = error
        except StateError as error:  # it drains, or its weights are being replaced; others may be ready
            log.warning("%s takes no samples: %s", member, error)
            self.usable.discard(member)
            self._refusing.add(member)
            failure = error
        except DeadlineError as error:
            if self.usable <= {member}:
                raise
            self.usable.discard(member)  # it takes samples and doesn't answer (case D6); others may
            failure = error
        except OverloadedError as error:
            await asyncio.sleep(error.retry_after_s)
            failure = error
        finally:
            self._capacities.end(done)
        return failure


def continue_from(request: GenerateRequest, partial: Completion) -> GenerateRequest:
    """The same sample, going on after the tokens it already has."""
    if not partial.token_ids:
        return request
    return replace(request, generated=Generated(partial.token_ids, partial.log_probs, partial.versions))


def assign_groups(
    requests: Sequence[GenerateRequest], weights: Mapping[str, float]
) -> Mapping[str, Sequence[GenerateRequest]]:
    """Spread whole groups over members, so that prompts are prefilled once: the longest work first, each to the member
    that would be done with it soonest. `weights` says how fast each member is, relative to the others (above 0).

    Deterministic: equal inputs give equal shares.
    """
    if not weights:
        return {}
    groups: dict[GroupId, list[GenerateRequest]] = defaultdict(list)
    for request in requests:
        groups[request.sample_id.group].append(request)
    load = dict.fromkeys(weights, 0)
    shares: dict[str, list[GenerateRequest]] = defaultdict(list)
    for _, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        member = min(weights, key=lambda name: ((load[name] + len(group)) / weights[name], name))
        load[member] += len(group)
        shares[member].extend(group)
    return {member: sorted(share, key=lambda request: request.sample_id) for member, share in shares.items()}
