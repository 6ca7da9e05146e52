"""Generation: requests are spread over the rollout servers, and a lost server's partial answers go on elsewhere."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from argosy.controller.context import RunContext
from argosy.controller.stages.answering import Answerer, Answers, Sink
from argosy.controller.stages.fleet import RolloutFleet
from argosy.controller.stages.running import continue_from
from argosy.controller.stages.single import MAX_ROUNDS, ROUND_PAUSE_S, SingleSamples
from argosy.types.errors import DeadlineError, OverloadedError, StateError, UnavailableError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, Prompt, TokenRun

log = logging.getLogger(__name__)


class RolloutStage(RolloutFleet):
    """Dispatches batches of requests to the servers that hold the current weights."""

    def __init__(self, ctx: RunContext) -> None:
        super().__init__(ctx)
        self._even = ctx.config.argosy.deterministic
        """Shares must not depend on how fast servers are."""
        self.singles = SingleSamples(ctx, self)
        """What `generate_one` works with."""
        self.answerer: Answerer = self
        """Who answers the data's prompts: this stage itself, unless agent loops do."""

    def of(self, prompts: Sequence[Prompt]) -> Answers:
        """See Answerer: a plain answer needs to know no more than the request."""
        return self

    async def synced(self, members: Sequence[str], version: PolicyVersion) -> None:
        """As for any fleet; samples that wait for a server go on."""
        await super().synced(members, version)
        await self.singles.refresh()

    def give_up(self, member: str) -> None:
        """Use a server no more, until a sync to it succeeds: what it has of `generate_one` goes on elsewhere."""
        self.usable.discard(member)
        self.singles.evict(member)

    def drains(self, member: str) -> None:
        """As for any fleet; what it ends early is no failure, and goes on elsewhere."""
        super().drains(member)
        self.singles.leaves(member)

    def forget(self, member: str) -> None:
        """As for any fleet; its connection is closed, so that what it had goes on elsewhere."""
        super().forget(member)
        self.singles.has_left(member)

    def metrics(self) -> dict[str, float]:
        """What each pool did for training since the last call."""
        return self._capacities.metrics(self.in_use())

    async def generate(self, requests: Sequence[GenerateRequest], sink: Sink) -> None:
        """Hand each request's completion to `sink`, exactly once, as it ends.

        What a server doesn't finish goes on elsewhere at once, while the others are busy with theirs. Raises
        UnavailableError when samples are still missing after the bounded rounds of re-dispatch.
        """
        await self.clear_devices()
        waiting = {request.sample_id: request for request in requests}
        failure = await self._round(waiting, list(waiting), sink, 0)
        if waiting:
            raise UnavailableError(
                f"{len(waiting)} of {len(requests)} samples could not be generated in {MAX_ROUNDS} rounds; "
                f"the last failure was: {failure}"
            )

    async def generate_one(
        self, request: GenerateRequest, *, on_run: Callable[[TokenRun], None] | None = None
    ) -> Completion:
        """One sample, whichever server makes it; hundreds may be asked for at once. `on_run` gets tokens as they come.

        A server that is lost, or that ends the sample for new weights, costs it nothing: it goes on from its tokens,
        anywhere. Raises UnavailableError when server after server fails it.
        """
        return await self.singles.generate(request, on_run)

    async def _round(
        self, waiting: dict[SampleId, GenerateRequest], samples: Sequence[SampleId], sink: Sink, number: int
    ) -> Exception | None:
        """Spread some of those that wait over the servers; why the last of them failed, if any did."""
        if not samples:
            return None
        if not await self.wait_for_joiner():
            return UnavailableError("no rollout server is left, and none has joined within argosy.startup_timeout_s")
        usable = self.in_use()
        if len(usable) > 1:
            await self.learn_slots(usable)
        weights = dict.fromkeys(usable, 1.0) if self._even else self._capacities.weights(usable)
        shares = assign_groups([waiting[sample] for sample in samples], weights)
        if not shares:
            return await self._again(waiting, samples, sink, number, UnavailableError("no rollout server is usable"))

        async def serve(member: str, share: Sequence[GenerateRequest]) -> Exception | None:
            failure = await self._serve(member, share, waiting, sink)
            left = [request.sample_id for request in share if request.sample_id in waiting]
            return failure if failure is None else await self._again(waiting, left, sink, number, failure)

        async with asyncio.TaskGroup() as group:  # an exception of one ends the others before it is raised
            serving = [group.create_task(serve(member, share)) for member, share in shares.items()]
        return next((failure for task in serving if (failure := task.result()) is not None), None)

    async def _again(
        self,
        waiting: dict[SampleId, GenerateRequest],
        samples: Sequence[SampleId],
        sink: Sink,
        number: int,
        failure: Exception,
    ) -> Exception | None:
        """Another round for what a server has left, unless there were enough."""
        if not samples or number + 1 >= MAX_ROUNDS:
            return failure
        self._ctx.count("rollout/redispatched_samples", len(samples))
        log.warning("dispatching %d samples again (%s)", len(samples), failure)
        await asyncio.sleep(ROUND_PAUSE_S * (number + 1))
        await self.readmit()
        if number:  # once more: it may be one of them that servers die of, which shows when each goes by itself
            async with asyncio.TaskGroup() as group:
                tries = [group.create_task(self._by_itself(waiting, sample, sink, number + 1)) for sample in samples]
            return next((failed for task in tries if (failed := task.result()) is not None), None)
        return await self._round(waiting, samples, sink, number + 1)

    async def _by_itself(
        self, waiting: dict[SampleId, GenerateRequest], sample: SampleId, sink: Sink, number: int
    ) -> Exception | None:
        """What went wrong if it still couldn't be made."""
        try:
            completion = await self.singles.generate(waiting[sample], lost=number)
        except UnavailableError as error:
            return error
        await sink(completion)
        del waiting[sample]
        return None

    async def _serve(
        self, member: str, share: Sequence[GenerateRequest], waiting: dict[SampleId, GenerateRequest], sink: Sink
    ) -> Exception | None:
        ctx = self._ctx
        if share[0].purpose == "train":
            ctx.ledger.dispatched([request.sample_id for request in share], member)
        failure: Exception | None = None
        loop = asyncio.get_running_loop()
        done = self._capacities.begin(member, share, loop.time())
        left = len(share)
        ctx.vitals.sent(member, left)
        try:
            async for completion in ctx.services.rollouts[member].generate(share, deadline_s=ctx.deadline_s):
                request = waiting[completion.sample_id]
                done.take(completion, request.key, loop.time())
                left -= 1
                ctx.vitals.ended(member)
                if completion.finish_reason in (FinishReason.FAILED, FinishReason.ABORTED):
                    waiting[completion.sample_id] = continue_from(request, completion)
                    failure = UnavailableError(f"{member}: {completion.error or completion.finish_reason.value}")
                else:
                    self.singles.whole_count += 1
                    await sink(completion)
                    del waiting[completion.sample_id]
        except UnavailableError as error:
            self.usable.discard(member)
            failure = error
        except StateError as error:
            self.refused(member, error)
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
            ctx.vitals.ended(member, left)
        if failure is not None:
            ctx.vitals.failed(member, failure)
        return failure


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
    ends: list[tuple[float, str]] = []  # when each member would be done with a group of `size` more
    size = 0
    for _, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        if len(group) != size:
            size = len(group)
            ends = [((load[name] + size) / weight, name) for name, weight in weights.items()]
            heapq.heapify(ends)
        member = ends[0][1]
        load[member] += size
        shares[member].extend(group)
        heapq.heapreplace(ends, ((load[member] + size) / weights[member], member))
    return {member: sorted(share, key=lambda request: request.sample_id) for member, share in shares.items()}
