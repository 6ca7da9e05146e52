"""The stream: groups come in through a gate, end in any order, and become steps when the trainer asks for one.

source ── admit() ──► gate            as many as the present weights may still be trained in (staleness.room)
   │
   └──── finish() ──► finished groups ── produce(step) ──► the trainer
                         │                  due ones first (staleness.choose), what is unfinished is carried over
                         └── without spread: dropped, and others are let in (dynamic sampling)
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.controller.context import RunContext
from argosy.controller.groups import Finished, FinishedGroup, GroupSource, InFlight, Ticket
from argosy.controller.producing import DATA_OVER, NoMoreSteps, Produced, StepParts, end_of_data, finish_step
from argosy.controller.rewards.failures import FailureWindow
from argosy.controller.stages.filtering import GroupFilter
from argosy.controller.stages.generation import OnStage
from argosy.controller.stages.load import ServerLoad
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.staleness import choose, deadline_of, is_ready, room
from argosy.controller.stream_codec import group_from_json, group_to_json
from argosy.telemetry.traces import span, traceparent
from argosy.types.errors import StateError
from argosy.types.ids import GroupId
from argosy.types.records import Scored

TOO_OLD = "too old: its oldest token is of more than argosy.max_staleness versions before"
SURPLUS = "over-sampled: others were done first"
RUN_OVER = "the run was over before it was trained"


@dataclass(slots=True)
class _Counts:
    """Since the last step was taken."""

    stale: int = 0
    """Groups that were too old."""
    surplus: int = 0
    gate_wait_s: float = 0.0
    """In which somebody waited at the gate."""


@dataclass(slots=True)
class _Gate:
    """Numbers of groups over the whole run, and who is under way."""

    admitted: int = 0
    released: int = 0
    """Dropped, so that others were let in."""
    taken_steps: int = 0
    synced_step: int = -1
    """-1: there are no weights yet."""
    in_flight: InFlight = field(default_factory=InFlight)


class GroupStream:
    """Implements `Admission` for a source, and `StepProducer` for the loop.

    Args:
        ctx: The run.
        source: What begins groups.
        rollout: For metrics, and the version that samples.
        on_stage: Told what the loop waits for.
        total_steps: Of the run: no group is let in that no step will need.
        group_limit: Groups that may be done for one step before dynamic sampling gives up.
    """

    def __init__(
        self,
        ctx: RunContext,
        source: GroupSource,
        rollout: RolloutStage,
        on_stage: OnStage,
        total_steps: int,
        group_limit: int,
    ) -> None:
        self._ctx = ctx
        self._source = source
        self._rollout = rollout
        self._on_stage = on_stage
        self._total_steps = total_steps
        self._group_limit = group_limit
        self._batch_size = ctx.config.data.train_batch_size
        self._max_staleness = ctx.config.argosy.max_staleness
        self._spare = ctx.config.argosy.stream.extra_groups
        self._max_in_flight = ctx.config.argosy.stream.max_in_flight_groups
        reward = ctx.config.argosy.reward
        self._failures = FailureWindow(reward.max_error_rate, reward.error_window)
        self._load = ServerLoad(lambda: {name: ctx.services.rollouts[name] for name in rollout.in_use()})
        self._gate = _Gate()
        self._finished = Finished()
        self._parts = self._new_parts()
        self._counts = _Counts()
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def source(self) -> GroupSource:
        """What begins its groups."""
        return self._source

    # -- for the source ----------------------------------------------------------------------------------------------

    async def admit(self) -> Ticket:
        """See `Admission`."""
        clock = asyncio.get_running_loop().time
        while self._room() < 1:
            began = clock()
            self._changed.clear()
            await self._changed.wait()
            self._counts.gate_wait_s += clock() - began
        return self._begin(self._gate.synced_step)

    def finish(self, ticket: Ticket, group: FinishedGroup) -> None:
        """See `Admission`. Raises RewardsUnusableError where a data source's verdicts fail too often."""
        self._end(ticket)
        self._failures.add([(group.prompt.data_source, outcome) for outcome in group.outcomes.values()])
        self._parts.add(group.completions, group.outcomes)
        sampled = self._parts.sampled(group.completions)
        reason = self._parts.groups.take(sampled, group.outcomes)
        if reason is None:
            self._finished.add(group)
        else:
            self._drop(group, f"dynamic sampling: {reason}")

    def give_up(self, ticket: Ticket) -> None:
        """See `Admission`."""
        self._end(ticket)
        self._gate.released += 1

    def _begin(self, admitted_step: int) -> Ticket:
        self._gate.admitted += 1
        ticket = Ticket(self._gate.admitted, admitted_step)
        self._gate.in_flight.add(ticket)
        return ticket

    def _end(self, ticket: Ticket) -> None:
        if not self._gate.in_flight.end(ticket.number):
            raise StateError(f"group {ticket.number} is not under way: it was handed over, given up or stopped")
        self._changed.set()

    def _drop(self, group: FinishedGroup, reason: str) -> None:
        self._ctx.ledger.dropped(sorted(group.completions), reason)
        self._gate.released += 1
        self._changed.set()

    def _room(self) -> int:
        gate = self._gate
        if gate.synced_step < 0:
            return 0
        open_count = len(gate.in_flight) + len(self._finished)
        rooms = [
            room(open_count, gate.synced_step, gate.taken_steps, self._batch_size, self._max_staleness, self._spare),
            (self._total_steps - gate.taken_steps) * self._batch_size + self._spare - open_count,
        ]
        if gate.taken_steps >= self._total_steps:
            rooms.append(0)
        if self._max_in_flight:
            rooms.append(self._max_in_flight - len(gate.in_flight))
        return min(rooms)

    # -- for the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let the source work until it has no more, or this is cancelled."""
        async with self._load.watched():
            await self._source.run(self)
        self._ended = True
        self._changed.set()

    def synced(self, step: int) -> None:
        """The weights of `step` are everywhere. The first call says where the run begins."""
        if self._gate.synced_step < 0:
            self._gate.taken_steps = step
        self._gate.synced_step = step
        self._changed.set()

    async def produce(self, step: int) -> Produced | NoMoreSteps:
        """Wait until step `step` has its groups, and give them out in the order of their ids."""
        clock = asyncio.get_running_loop().time
        waited, started = clock(), time.perf_counter()
        self._on_stage(step, "gen")
        with span("step.produce", step=step):
            trace, looked_at = traceparent(), 0
            while True:
                looked_at = self._drop_old(step, looked_at)
                places = self._choose(step)
                if places is not None:
                    break
                end = self._end_of_stream(step)
                if end is not None:
                    return end
                self._changed.clear()
                await self._changed.wait()
        chosen = sorted((self._finished.groups[place] for place in places), key=lambda group: group.prompt.group)
        return self._take(step, chosen, trace, started, clock() - waited)

    def _choose(self, step: int) -> list[int] | None:
        """Places of the groups that a step takes; None while it must wait. Asked at each group that is done."""
        finished, unfinished = self._deadlines(self._finished.steps), self._deadlines(self._gate.in_flight.steps)
        if not is_ready(step, self._batch_size, finished, unfinished, self._spare):
            return None
        places = [deadline_of(group.oldest_step, self._max_staleness) for group in self._finished.groups]
        return choose(step, self._batch_size, places, Counter(unfinished).elements(), self._spare)

    def _deadlines(self, steps: Mapping[int, int]) -> dict[int, int]:
        """Deadline → groups, from step → groups."""
        return {deadline_of(step, self._max_staleness): count for step, count in steps.items()}

    def _drop_old(self, step: int, looked_at: int) -> int:
        """The strict check: whatever the gate did, nothing too old is trained. Of the finished groups the first
        `looked_at` were looked at before; returns how many that are now."""
        for group in self._finished.take(
            lambda group: deadline_of(group.oldest_step, self._max_staleness) < step, looked_at
        ):
            self._counts.stale += 1
            self._ctx.count("stream/dropped_stale_groups")
            self._drop(group, TOO_OLD)
        return len(self._finished)

    def _end_of_stream(self, step: int) -> NoMoreSteps | None:
        """Why there will be no such step; None while there may be."""
        groups = self._parts.groups
        if groups.drawn_count >= self._group_limit and len(self._finished) < self._batch_size and groups.dropped:
            groups.kept = [group.prompt for group in self._finished.groups]
            groups.batch_count = -(-groups.drawn_count // self._generation_size)
            error = groups.not_full(step)
            return NoMoreSteps(error.message, error)
        if not self._ended or self._gate.in_flight:
            return None
        groups.kept = [group.prompt for group in self._finished.groups]
        for group in self._finished.take(lambda _: True):
            self._drop(group, DATA_OVER)
        return end_of_data(self._ctx.config, step, groups)

    def _take(self, step: int, chosen: list[FinishedGroup], trace: str, started: float, waited_s: float) -> Produced:
        parts, counts = self._parts, self._counts
        self._parts, self._counts = self._new_parts(), _Counts()
        taken = {group.prompt.group for group in chosen}
        self._finished.take(lambda group: group.prompt.group in taken)
        self._gate.taken_steps = step
        self._leave_out(step, counts)
        parts.groups.kept = [group.prompt for group in chosen]
        parts.groups.batch_count = -(-parts.groups.drawn_count // self._generation_size)
        for group in chosen:
            parts.completions |= group.completions
            parts.outcomes |= group.outcomes
        parts.version = self._rollout.version
        parts.started = started
        parts.timing = {
            "wait_rollouts": waited_s,
            "group_gen": max(group.generate_s for group in chosen),
            "group_reward": max(group.score_s for group in chosen),
        }
        metrics = self._rollout.metrics() | self._load.metrics() | self._metrics(parts, counts, waited_s)
        self._changed.set()
        return finish_step(self._ctx, step, parts, trace, self, metrics)

    def _leave_out(self, step: int, counts: _Counts) -> None:
        """End what no later step can take: over-sampled groups at their deadline, and everything at the last step."""
        last = step >= self._total_steps
        reason = RUN_OVER if last and not self._spare else SURPLUS

        def ends(oldest: int) -> bool:
            return last or deadline_of(oldest, self._max_staleness) <= step

        for group in self._finished.take(lambda group: ends(group.oldest_step)):
            self._drop(group, reason)
            counts.surplus += 1
        for ticket in [ticket for ticket in self._gate.in_flight if ends(ticket.admitted_step)]:
            self._gate.in_flight.end(ticket.number)
            self._gate.released += 1
            self._source.stop(ticket, reason)
            counts.surplus += 1

    def _metrics(self, parts: StepParts, counts: _Counts, waited_s: float) -> dict[str, float]:
        return {
            "stream/trainer_wait_s": waited_s,
            "stream/gate_wait_s": counts.gate_wait_s,
            "stream/carried_over_groups": float(len(self._finished) + len(self._gate.in_flight)),
            "stream/in_flight_groups": float(len(self._gate.in_flight)),
            "stream/finished_groups": float(len(self._finished)),
            "stream/stale_groups": float(counts.stale),
            "stream/surplus_groups": float(counts.surplus),
            "stream/unjudged_fraction": _unjudged(parts),
        }

    @property
    def _generation_size(self) -> int:
        return self._ctx.config.data.gen_batch_size or self._batch_size

    def _new_parts(self) -> StepParts:
        return StepParts(self._ctx.config, GroupFilter(self._ctx.config))

    # -- for checkpoints ---------------------------------------------------------------------------------------------

    def open_groups(self) -> frozenset[GroupId]:
        """Drawn, and neither dropped nor given to the trainer."""
        return self._source.open_groups() | {group.prompt.group for group in self._finished.groups}

    def sampler_state(self) -> Mapping[str, Any]:
        """Where the data order is right now."""
        return self._source.sampler_state()

    def reward_state(self) -> dict[str, Any]:
        """Running figures of the reward services, for a checkpoint."""
        router = self._ctx.services.router
        return {"scores": {} if router is None else router.state(), "failures": self._failures.state()}

    def restore_rewards(self, state: Mapping[str, Any]) -> None:
        """Go on from what `reward_state` gave; from nothing if the checkpoint has none."""
        if self._ctx.services.router is not None:
            self._ctx.services.router.restore(state.get("scores", {}))
        self._failures.restore(state.get("failures", {}))

    def state(self) -> Mapping[str, Any]:
        """Everything under way, as JSON values: what `restore` needs to lose and repeat nothing."""
        return {
            "admitted": self._gate.admitted,
            "released": self._gate.released,
            "finished": [group_to_json(group) for group in self._finished.groups],
            "source": dict(self._source.state()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; before `run` and `synced`."""
        self._finished = Finished(group_from_json(group) for group in state["finished"])
        self._gate.admitted = int(state["admitted"])
        self._gate.released = int(state["released"])
        self._source.restore(state["source"], lambda _, admitted_step: self._begin(admitted_step))


def _unjudged(parts: StepParts) -> float:
    verdicts = list(parts.outcomes.values())
    return sum(not isinstance(one, Scored) for one in verdicts) / max(len(verdicts), 1)
