"""Samples that are asked for one by one: each finds a server, and goes on elsewhere from its tokens if it must."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Set

from argosy.controller.context import RunContext
from argosy.controller.stages.dispatch import Places, one_each
from argosy.controller.stages.expected import ExpectedTokens
from argosy.controller.stages.fleet import RolloutFleet
from argosy.controller.stages.running import Blame, Running, continue_from, partial_of, poisonous
from argosy.controller.stages.slow import SlowServers
from argosy.types.errors import ArgosyError, DeadlineError, OverloadedError, StateError, UnavailableError
from argosy.types.ids import GroupId, PolicyVersion
from argosy.types.records import Completion, FinishReason, Generated, GenerateRequest, TokenRun

log = logging.getLogger(__name__)

OnRun = Callable[[TokenRun], None]

MAX_ROUNDS = 5
"""How often a sample is dispatched, without a new token, before the run gives up on it."""
SUSPECT_AFTER = 2
"""A sample of which so many servers in a row were lost goes to the next one when no other suspect is anywhere: what is
lost then is lost by it. The others that were there with it, which nothing ails, are soon done."""
ROUND_PAUSE_S = 0.5
MIN_PAUSE_S = 0.05
"""Before an overloaded server is asked again, even if it says at once."""
LEAVES = "leaves"
"""As whom a server's places are held that drains."""
LOST = (UnavailableError, DeadlineError)
"""How a call ends whose server is lost, or can't make this sample."""
MAX_MOVES = 2
"""How often one sample leaves a server that is only slow: each time what it has is computed again elsewhere."""
MAX_FAILED = 3
"""Prompts whose samples a server may fail in a row before others get its share: one prompt that no server can make
anything of puts none aside, however many samples it has."""
WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
"""How a sample ends that needs nothing more."""


class SingleSamples:
    """What `RolloutStage.generate_one` does, for all of its callers."""

    def __init__(self, ctx: RunContext, fleet: RolloutFleet) -> None:
        self._ctx = ctx
        self._fleet = fleet
        even = ctx.config.argosy.deterministic  # what goes where must not depend on how fast anything is
        self._expected = ExpectedTokens()
        self.slow = None if even else SlowServers(fleet, lambda member: self.places.is_held(member), self._move_from)
        """Finds servers that fall behind."""
        self.places = Places(
            fleet.in_use,
            fleet.slots,
            fleet.is_usable,
            one_each if even else lambda request, has_prompt: self._expected.of(request, has_prompt=has_prompt),
            (lambda member: 1.0) if self.slow is None else self.slow.speed,
        )
        """Room at the servers."""
        self._moves: Counter[str] = Counter()
        """Sample → how often it has left a slow server."""
        self._running: dict[str, Running] = {}
        self._parked: dict[str, Generated] = {}
        """What samples have that no server has right now."""
        self._failed: defaultdict[str, set[GroupId]] = defaultdict(set)
        """Prompts whose samples each server has failed in a row."""
        self._set_aside: dict[str, PolicyVersion | None] = {}
        """Servers that say that they are ready, and yet fail what they get → the weights before which that was."""
        self._rescue: asyncio.Task[None] | None = None
        """Waits for a server to come back while there is none."""
        self._alone = asyncio.Lock()
        """Held by the one suspect that is at a server."""
        self.whole_count = 0
        """Samples that servers have made. While none comes, a failure is no sample's own fault."""
        self._readmitting: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest, on_run: OnRun | None = None, lost: int = 0) -> Completion:
        """See `RolloutStage.generate_one`. `lost`: Servers that failed with it before, in a row."""
        try:
            return await self._generate(request, on_run, Blame(lost))
        finally:
            self._parked.pop(request.key, None)
            self._moves.pop(request.key, None)

    async def _generate(self, request: GenerateRequest, on_run: OnRun | None, blame: Blame) -> Completion:
        overloaded_s, whole_before = 0.0, 0 if blame.tries else self.whole_count
        while True:
            self._parked[request.key] = request.generated
            suspect = blame.servers(self._fleet.in_use()) >= SUSPECT_AFTER
            async with self._alone if suspect else contextlib.nullcontext():
                member = await self._place(request, blame.failed_by)
                completion, failure = await self._try(member, request, on_run)
            if completion is not None and completion.finish_reason in WHOLE:
                self.whole_count += 1
                self._expected.learn(len(completion.token_ids))
                self.places.made(member)
                return completion
            before = len(request.generated.token_ids)
            if completion is not None:
                request = continue_from(request, completion)
                self._parked[request.key] = request.generated
            if failure is None:  # ended for new weights, or since its server is given up
                self._ctx.count("rollout/resumed_samples")
                continue
            if isinstance(failure, OverloadedError) and overloaded_s < self._ctx.deadline_s:
                pause_s = max(failure.retry_after_s, MIN_PAUSE_S)
                overloaded_s += pause_s
                await asyncio.sleep(pause_s)
                continue
            blame.add(member, afresh=len(request.generated.token_ids) > before)
            if suspect and isinstance(failure, LOST) and self.whole_count > whole_before:
                self._ctx.count("rollout/poisonous_samples")
                return poisonous(request, member, blame.servers(self._fleet.in_use()), failure)
            if blame.tries >= MAX_ROUNDS:
                raise UnavailableError(
                    f"{request.key} could not be generated in {MAX_ROUNDS} tries; the last failure was: {failure}"
                ) from failure
            self._ctx.count("rollout/redispatched_samples")
            log.warning("dispatching %s again (%s)", request.key, failure)
            await asyncio.sleep(ROUND_PAUSE_S * blame.tries)
            readmitting = self._readmit()
            if not self._fleet.any_usable:  # else a server that is silent would hold up samples of another
                await asyncio.shield(readmitting)

    def so_far(self, request: GenerateRequest) -> Generated:
        """The tokens that a sample has right now, wherever it is."""
        running = self._running.get(request.key)
        return self._parked.get(request.key, request.generated) if running is None else running.so_far()

    def evict(self, member: str) -> int:
        """Give up a server: its samples go on elsewhere. How many there were."""
        now, count = asyncio.get_running_loop().time(), 0
        for running in self._running.values():
            if running.member == member and not running.is_given_up:
                running.is_given_up = True
                running.scope.reschedule(now)
                count += 1
        self._see_to_those_who_wait()
        return count

    def _move_from(self, member: str) -> int:
        """Let samples go on elsewhere that a slow server has, the last to come first, as far as others have room."""
        here = [one for one in self._running.values() if one.member == member and not one.is_given_up]
        movable = [one for one in reversed(here) if self._moves[one.request.key] < MAX_MOVES]
        chosen = movable[: self.places.room_besides(member)]
        for running in chosen:
            running.is_given_up = True
            self._moves[running.request.key] += 1
            running.scope.reschedule(asyncio.get_running_loop().time())
        if chosen:
            self._ctx.count("rollout/moved_samples", len(chosen))
        return len(chosen)

    def close(self) -> None:
        """Watch nothing any more."""
        if self.slow is not None:
            self.slow.close()

    def leaves(self, member: str) -> None:
        """A server drains: it is sent nothing more."""
        self.places.hold(member, LEAVES)
        self._see_to_those_who_wait()

    def has_left(self, member: str) -> None:
        """A server is gone."""
        self.places.forget(member)
        self._failed.pop(member, None)  # another life of it has failed nothing
        self._set_aside.pop(member, None)
        if self.slow is not None:
            self.slow.forget(member)
        self._see_to_those_who_wait()

    def interrupt(self, member: str) -> None:
        """A server is about to end what it runs, for new weights: no failure of its own."""
        for running in self._running.values():
            running.is_interrupted |= running.member == member

    async def _place(self, request: GenerateRequest, avoided: Set[str]) -> str:
        if not self.places.is_filled:
            await self.refresh()
        if not self._fleet.any_usable:
            self._look_for_servers()
        return await self.places.take(request, avoided)

    async def _try(
        self, member: str, request: GenerateRequest, on_run: OnRun | None
    ) -> tuple[Completion | None, ArgosyError | None]:
        """What one server makes of a sample, and what went wrong if it isn't whole; None if it was ended by us."""
        self._begin(request, member)
        running = self._running[request.key] = Running.of(request, member)
        completion: Completion | None = None
        failure: ArgosyError | None = None

        def watch(run: TokenRun) -> None:
            running.take(run)
            self._made(running, len(run.token_ids))
            if on_run is not None:
                on_run(run)

        try:
            server = self._ctx.services.rollouts[member]
            async with running.scope:
                async for completion in server.generate([request], deadline_s=self._ctx.deadline_s, on_run=watch):
                    if completion.finish_reason is FinishReason.FAILED or not (
                        completion.finish_reason in WHOLE or running.is_interrupted or self.places.is_held(member)
                    ):
                        failure = UnavailableError(f"{member}: {completion.error or completion.finish_reason.value}")
            self._judge(member, request, completion)
            if completion is None and not running.is_given_up:
                completion, failure = (
                    partial_of(running),
                    UnavailableError(f"{member} ended {request.key} without an answer"),
                )
        except TimeoutError as error:  # it was given up, or is a failure of the server's own
            completion = completion or partial_of(running)
            failure = None if running.is_given_up else UnavailableError(f"{member}: {error!r}")
        except DeadlineError as error:
            if self._fleet.usable <= {member}:
                raise
            self._put_aside(member)  # it takes samples and doesn't answer (case D6); others may
            completion, failure = completion or partial_of(running), error
        except UnavailableError as error:
            self._fleet.usable.discard(member)
            failure = error
        except StateError as error:
            self._fleet.refused(member, error)
            failure = error
        except OverloadedError as error:
            self.places.refused(member)
            failure = error
        finally:
            self._end(running, completion)
        if failure is not None:
            self._ctx.vitals.failed(member, failure)
        return completion, failure

    def _judge(self, member: str, request: GenerateRequest, completion: Completion | None) -> None:
        """Send no more to a server that fails prompt after prompt, if there are others (case D6)."""
        if completion is None or completion.finish_reason is not FinishReason.FAILED:
            self._failed.pop(member, None)
            return
        self._failed[member].add(request.sample_id.group)
        if len(self._failed[member]) >= MAX_FAILED and not self._fleet.usable <= {member}:
            log.warning("%s fails sample after sample (%s): others get its share", member, completion.error)
            self._put_aside(member)

    def _put_aside(self, member: str) -> None:
        """Use it no more until it has taken other weights, whatever its status says."""
        self._fleet.usable.discard(member)
        self._set_aside[member] = self._fleet.version

    def _begin(self, request: GenerateRequest, member: str) -> None:
        """Enter a sample that has a place; the place is given back where the ledger refuses (its group was dropped)."""
        if request.purpose == "train":
            try:
                self._ctx.ledger.dispatched([request.sample_id], member)
            except BaseException:
                self.places.leave(member, request)
                raise
            self._fleet.begin_one(member)
        if self.slow is not None:
            self.slow.begin(member)
        self._ctx.vitals.sent(member)

    def _made(self, running: Running, token_count: int) -> None:
        """Its server has made so many tokens more of a sample."""
        self._ctx.vitals.moved(running.member)
        self.places.progress(running.member, running.request, token_count)
        if self.slow is not None:
            self.slow.made(running.member, token_count)

    def _end(self, running: Running, completion: Completion | None) -> None:
        del self._running[running.request.key]
        self._ctx.vitals.ended(running.member)
        if self.slow is not None:  # tokens that came with the answer were not told before
            told = len(running.token_ids)
            self.slow.made(running.member, max(0 if completion is None else len(completion.token_ids) - told, 0))
            self.slow.end(running.member)
        if running.request.purpose == "train":
            made = len(running.token_ids if completion is None else completion.token_ids)
            whole = completion is not None and completion.finish_reason in WHOLE
            self._fleet.end_one(running.member, made - len(running.request.generated.token_ids), finished=whole)
        self.places.leave(running.member, running.request)
        self._see_to_those_who_wait()

    def _readmit(self) -> asyncio.Task[None]:
        """Once for all who ask at one time."""
        if self._readmitting is None or self._readmitting.done():
            self._readmitting = asyncio.create_task(self._take_back())
        return self._readmitting

    async def _take_back(self) -> None:
        await self._fleet.readmit()
        aside = {member for member, version in self._set_aside.items() if version == self._fleet.version}
        if self._fleet.usable - aside:  # else they are better than nobody
            self._fleet.usable -= aside
        await self.refresh()

    async def refresh(self) -> None:
        """See anew which servers there are and what they can take; only new ones are asked."""
        await self._fleet.learn_slots(self._fleet.in_use())
        self.places.fill()

    def _see_to_those_who_wait(self) -> None:
        """A server is gone: whoever waits for a place must not wait for nobody."""
        if not self._fleet.any_usable and self.places.is_waited_for:
            self._look_for_servers()

    def _look_for_servers(self) -> None:
        """Until one is there or none can be found, which those who wait are told then."""
        if self._rescue is None or self._rescue.done():
            self._rescue = asyncio.create_task(self._find_server())

    async def _find_server(self) -> None:
        try:
            for number in range(1, MAX_ROUNDS):
                await asyncio.sleep(ROUND_PAUSE_S * number)
                await asyncio.shield(self._readmit())
                if self._fleet.any_usable:
                    return
            await self._fleet.wait_for_joiner()
            if self._fleet.any_usable:
                await self.refresh()
                return
        except Exception as error:  # nobody awaits this task: those who wait for a place are told
            log.exception("looking for rollout servers has failed")
            self.places.fail(error)
            return
        self.places.fail(UnavailableError(f"no rollout server was usable in {MAX_ROUNDS} tries"))
