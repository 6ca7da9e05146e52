"""Pausing, resuming and stopping a run from outside, at step boundaries; and telling others how it goes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from argosy.controller.stall import StallWatch
from argosy.controller.vitals import Vitals
from argosy.membership.interface import Membership
from argosy.types.errors import StateError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Member, RunStatus, ScaleChange, ServerCount

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_ASK_S = 2.0
"""How long membership gets to answer whoever looks at a fleet."""
Scaler = Callable[[Sequence[ServerCount]], Awaitable[Sequence[ScaleChange]]]


@dataclass(slots=True)
class RunView:
    """What is known of a run for those outside."""

    run_id: str
    total_steps: int
    term: int = 0
    step: int = 0
    state: str = "starting"
    version: PolicyVersion | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class RunControl:
    """Implements `argosy.roles.controller.RunController`: the loop obeys it, ControllerService and signals set it."""

    def __init__(self, run_id: str = "", total_steps: int = 0) -> None:
        self.view = RunView(run_id, total_steps)
        self.membership: Membership | None = None
        self.scaler: Scaler | None = None
        """What starts and drains servers; None where no launcher of this run does."""
        self.stop_requested = False
        """The loop ends after the step that it is in."""
        self.stage = "start"
        """What the loop waits for right now."""
        self.message = ""
        self.vitals = Vitals()
        """What the controller sees of members."""
        self.stalls = StallWatch(self.vitals)
        self.unsaved_steps = 0
        """Finished steps that no checkpoint has: what an end at once would lose."""
        self._known: tuple[Member, ...] = ()
        """The fleet, as membership had it when it last spoke."""
        self._interrupted = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._changed = asyncio.Condition()
        self._notices: set[asyncio.Task[None]] = set()

    @property
    def paused(self) -> bool:
        """Whether the loop will wait, or waits, at the next step boundary."""
        return not self._running.is_set()

    async def get_run(self) -> RunStatus:
        """The run as it is now."""
        view = self.view
        state = view.state
        if state == "running":
            state = "stopping" if self.stop_requested else "paused" if self.paused else state
        return RunStatus(
            view.run_id,
            state,
            view.step,
            view.total_steps,
            view.term,
            view.version,
            self.stage,
            dict(view.metrics),
            self.message,
            self.stalls.since,
            self.stalls.stall(),
        )

    async def watch_run(self) -> AsyncIterator[RunStatus]:
        """Now, and at each change, until the run ends; a slow reader gets the newest."""
        while True:
            status = await self.get_run()
            yield status
            if status.state in ("finished", "failed"):
                return
            async with self._changed:
                if await self.get_run() == status:
                    await self._changed.wait()

    async def follow_members(self, membership: Membership) -> None:
        """Keep what membership last had, for as long as this task runs."""
        async for self._known in membership.watch():
            pass

    async def list_members(self, role: str = "") -> Sequence[Member]:
        """The fleet as membership has it, with what this controller has seen of each.

        While membership can't be asked: as it last was, and the controllers' own entries say so.
        """
        if self.membership is None:
            return ()
        try:
            async with asyncio.timeout(_ASK_S):
                members = [self._seen(one) for one in await self.membership.members()]
        except (UnavailableError, TimeoutError) as error:
            if not self._known:
                raise UnavailableError(f"etcd can't be asked who the members are: {error or 'no answer'}") from error
            log.debug("members are listed as they last were: %s", error)
            told, now = "etcd can't be asked: members as they last were", time.time()
            members = [
                replace(one, error=told, error_at=now) if one.role == "controller" else self._seen(one)
                for one in self._known
            ]
        return sorted(
            (member for member in members if role in ("", member.role)),
            key=lambda member: (member.role, member.member_id),
        )

    def _seen(self, member: Member) -> Member:
        one = self.vitals.of(member.member_id)
        idle_s = self.vitals.idle_s(member.member_id)
        return replace(member, sample_count=one.sample_count, idle_s=idle_s, error=one.error, error_at=one.error_at)

    async def pause(self) -> RunStatus:
        """Wait at the next step boundary."""
        self._running.clear()
        self.notify()
        return await self.get_run()

    async def resume(self) -> RunStatus:
        """Go on."""
        self._running.set()
        self.notify()
        return await self.get_run()

    async def stop(self, reason: str = "") -> RunStatus:
        """End after the present step, with a checkpoint."""
        self.stop_requested = True
        self.message = reason or "stopped on request"
        self._running.set()
        self.notify()
        return await self.get_run()

    async def scale(self, wanted: Sequence[ServerCount]) -> Sequence[ScaleChange]:
        """Start or drain servers."""
        if self.scaler is None:
            raise StateError(
                "this run can't be scaled: only one with argosy.placement=local has a launcher that starts servers; "
                "start and stop those of other runs where they are (argosy serve)"
            )
        return await self.scaler(wanted)

    @property
    def interrupted(self) -> bool:
        """Whether the run is to be over as soon as its finished steps are saved."""
        return self._interrupted.is_set()

    def interrupt(self, reason: str) -> bool:
        """End soon: not even the step that is being generated is finished, only one that is being trained.

        Returns whether that is worth waiting for: False where everything that is finished is saved.
        """
        self.stop_requested = True
        self.message = reason
        self._interrupted.set()
        self._running.set()
        self.notify()
        return self.unsaved_steps > 0

    async def unless_interrupted(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """The result of the work; None, and the work cancelled, when the run is interrupted meanwhile."""
        working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, waiting):
                task.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)

    def at_stage(self, stage: str) -> None:
        """The loop now waits for this."""
        self.stage = stage
        self.stalls.enter(stage)
        self.notify()

    def ended(self, state: str, message: str = "") -> None:
        """The run is over: "finished" or "failed"."""
        self.view.state = state
        self.message = message or self.message
        self.notify()

    async def at_step_boundary(self, step: int) -> None:
        """Called by the loop between two steps: returns at once unless paused."""
        if self.paused:
            log.info("paused after step %d", step)
            self.at_stage("paused")
            await self._running.wait()

    def notify(self) -> None:
        """Wake those who watch."""
        notice = asyncio.get_running_loop().create_task(self._wake())
        self._notices.add(notice)  # the loop keeps only weak references to tasks
        notice.add_done_callback(self._notices.discard)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
