"""The group source of agents that run elsewhere: tasks are begun when clients ask for them and the gate lets them.

client ── next task / new session ──► want ──► admission.admit() ──► Task ──► sessions
client ── rewards ──► finished ──► admission.finish()          (or dropped ──► admission.give_up())
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.groups import Admission, Ticket
from argosy.controller.openai.errors import ApiError, run_over
from argosy.controller.openai.tasks import OWN_POSITIONS, Task, finished_group
from argosy.controller.producing import last_data_epoch
from argosy.controller.stream_source import OTHER_SIZE
from argosy.text import TextTokenizer
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Prompt, ScoreResult

log = logging.getLogger(__name__)

DATA_SET = ""
"""The key of tasks that are rows of the data set."""

RESTARTED = "the controller was restarted, and its client is gone"


class Want:
    """Clients that wait for a task of one key."""

    def __init__(self, data_source: str) -> None:
        self.data_source = data_source
        self.waiting = 0
        self.task: asyncio.Future[Task] = asyncio.get_running_loop().create_future()


class SessionSource:
    """Implements `argosy.controller.groups.GroupSource`.

    Args:
        ctx: The run.
        sampler: Draws the rows that `/v1/tasks/next` hands out.
        tokenizer: Decodes what is shown and dumped.
    """

    def __init__(self, ctx: RunContext, sampler: PromptSampler, tokenizer: TextTokenizer) -> None:
        self._ctx = ctx
        self._sampler = sampler
        self._decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
        self._options = ctx.config.argosy.openai
        self._n = ctx.config.actor_rollout_ref.rollout.n
        self._wants: OrderedDict[str, Want] = OrderedDict()
        self._wanted = asyncio.Event()
        self._task_over = asyncio.Event()
        self._begun = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data_epochs = last_data_epoch(ctx.config)
        self._admission: Admission | None = None
        self._own_count = 0
        """Tasks of clients' own keys so far."""
        self._lost: list[tuple[Ticket, list[SampleId], str]] = []
        """Tasks that were under way when a checkpoint was written and can't go on (clients' own keys: nobody can bring
        them back), and why."""
        self._ready: dict[str, deque[Task]] = defaultdict(deque)
        """Tasks with sessions that nobody took yet, by key."""
        self.open_tasks: dict[GroupId, Task] = {}
        """Begun, and neither finished nor dropped."""
        self.closed = False
        """There will be no more tasks."""

    # --- the clients' side ---------------------------------------------------------------------------------------

    async def task(self, key: str, data_source: str, wait_s: float) -> Task:
        """A task of that key with a free session, admitted now if need be. Raises ApiError when none comes in time."""
        try:
            async with asyncio.timeout(wait_s):
                await self._begun.wait()
                while (task := self._free(key)) is None:
                    await self._admitted(key, data_source)
                return task
        except TimeoutError:
            raise ApiError(
                429,
                f"no task may begin now: the run has all the samples that it may train with the present weights, and "
                f"none was admitted within {wait_s:g} s; come again",
                code="not_admitted",
                retry_after_s=1,
            ) from None

    def _free(self, key: str) -> Task | None:
        ready = self._ready.get(key)
        while ready:
            if ready[0].has_room:
                return ready[0]
            ready.popleft()
        self._ready.pop(key, None)
        return None

    async def _admitted(self, key: str, data_source: str) -> None:
        if self.closed:
            raise run_over()
        want = self._wants.setdefault(key, Want(data_source))
        want.waiting += 1
        self._wanted.set()
        try:
            await asyncio.shield(want.task)
        except asyncio.CancelledError:
            if self.closed and want.task.cancelled():
                raise run_over() from None
            raise
        finally:
            want.waiting -= 1
            if not want.waiting and self._wants.get(key) is want:
                del self._wants[key]

    def settle(self, task: Task) -> None:
        """Look at a task of which a session has ended: it may be finished, or past hope."""
        if task.over:
            return
        task.used = asyncio.get_running_loop().time()
        verdict = task.verdict(self._options.min_rewarded or self._n)
        try:
            if verdict is True:
                self._finish(task)
            elif verdict is False:
                self.drop(task, next(session.reason for session in task.sessions if session.state == "ended"))
        except BaseException as error:  # books that don't balance end the run, not only the client's call
            if not self._failure.done():
                self._failure.set_exception(error)
            raise

    def _finish(self, task: Task) -> None:
        group, counts = finished_group(task, self._options.train_branch, self._decode)
        for name, amount in counts.items():
            self._ctx.count(name, amount)
        if group is None:
            self.drop(task, "its sessions' prompts have no first token in common")
            return
        self._close(task)
        for session in task.sessions:
            session.branches.clear()
        ledger, admission = self._ctx.ledger, self._admission
        assert admission is not None, "tasks are begun by run()"
        ledger.completed([completion for _, completion in sorted(group.completions.items())])
        ledger.scored([ScoreResult(sample, outcome) for sample, outcome in sorted(group.outcomes.items())])
        self._ctx.count("openai/finished_groups")
        admission.finish(task.ticket, group)

    def drop(self, task: Task, reason: str, *, gives_up: bool = True) -> None:
        """Nothing of it is trained; sessions that still run are ended. `gives_up`: another may begin in its place."""
        self._close(task)
        for session in task.sessions:
            if session.state == "open":
                session.end(f"its group was dropped: {reason}")
            session.branches.clear()  # a client may ask how it stands for long, and needs no tokens for that
        log.warning("sessions of %s are not trained: %s", task.group, reason)
        self._ctx.ledger.dropped(list(task.samples), f"agent session: {reason}")
        self._ctx.count("openai/dropped_groups")
        if gives_up and self._admission is not None:
            self._admission.give_up(task.ticket)

    def stop(self, ticket: Ticket, reason: str) -> None:
        """See the protocol."""
        for task in [task for task in self.open_tasks.values() if task.ticket is ticket]:
            self.drop(task, reason, gives_up=False)

    def _close(self, task: Task) -> None:
        task.over = True
        self.open_tasks.pop(task.group, None)
        left = [one for one in self._ready.pop(task.key, ()) if one is not task]
        if left:  # else the key goes too: nobody may ever ask for it again
            self._ready[task.key] = deque(left)
        self._task_over.set()

    # --- the run's side ------------------------------------------------------------------------------------------

    async def run(self, admission: Admission) -> None:
        """See the protocol. Ends when it is cancelled: then clients are told that there will be no more."""
        self._admission = admission
        self._begun.set()
        for ticket, samples, why in self._lost:
            self._ctx.ledger.dropped(samples, f"agent session: {why}")
            admission.give_up(ticket)
        self._lost = []
        try:
            async with asyncio.TaskGroup() as work:
                beside = [work.create_task(self._expire()), work.create_task(self._fail())]
                while await self._begin_one(admission):
                    pass
                await self._until_idle()
                for task in beside:
                    task.cancel()
        finally:
            self._shut()

    async def _begin_one(self, admission: Admission) -> bool:
        """Begin the next task that a client waits for; false when the data is used up."""
        await self._somebody_waits()
        ticket = await admission.admit()
        await self._somebody_waits()  # whoever it was may have left: the next one gets it
        key, want = self._wants.popitem(last=False)
        if key == DATA_SET and self._data_epochs is not None and self._sampler.next_data_epoch >= self._data_epochs:
            admission.give_up(ticket)
            want.task.set_exception(run_over())
            return False
        task = self._draw(key, want.data_source, ticket)
        self._ctx.ledger.drawn([(sample, task.prompt.index) for sample in task.samples])
        self._open(task)
        want.task.set_result(task)
        return True

    async def _until_idle(self) -> None:
        """Let what is under way end; nothing more is begun."""
        self.closed = True
        while self.open_tasks:
            self._task_over.clear()
            await self._task_over.wait()

    async def _somebody_waits(self) -> None:
        while not self._wants:
            self._wanted.clear()
            await self._wanted.wait()

    def _draw(self, key: str, data_source: str, ticket: Ticket) -> Task:
        if key == DATA_SET:
            prompt = self._sampler.next_prompt()
        else:
            prompt = Prompt(GroupId(0, OWN_POSITIONS + self._own_count), (), data_source, None, index=self._own_count)
            self._own_count += 1
        return Task(key, ticket, prompt, self._n)

    def _open(self, task: Task) -> None:
        self._ready[task.key].append(task)
        self.open_tasks[task.group] = task

    async def _fail(self) -> None:
        """End with what went wrong while a client was served."""
        await self._failure

    async def _expire(self) -> None:
        """End sessions that nobody uses any more, and tasks whose sessions nobody takes."""
        timeout_s = self._options.session_timeout_s
        while True:
            await asyncio.sleep(min(timeout_s / 4, 5.0))
            now = asyncio.get_running_loop().time()
            for task in list(self.open_tasks.values()):
                for session in list(task.sessions):
                    if session.idle_since(timeout_s, now):
                        self._ctx.count("openai/expired_sessions")
                        session.end(f"no call came for {timeout_s:g} s")
                        self.settle(task)
                busy = any(session.state == "open" for session in task.sessions)
                if task.has_room and not busy and now - task.used > timeout_s:
                    missing = task.n - len(task.sessions)
                    self.drop(task, f"nobody took {missing} of its {task.n} sessions for {timeout_s:g} s")

    def _shut(self) -> None:
        self.closed = True
        for want in self._wants.values():
            want.task.cancel()
        self._wants.clear()
        for task in self.open_tasks.values():
            for session in task.sessions:
                if session.state == "open":
                    session.end("the run takes no more samples")

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def open_groups(self) -> frozenset[GroupId]:
        """See the protocol."""
        return frozenset(self.open_tasks)

    def sampler_state(self) -> Mapping[str, Any]:
        """See the protocol."""
        return self._sampler.state()

    def state(self) -> Mapping[str, Any]:
        """See the protocol. Tokens of sessions aren't kept: their clients don't outlive the controller."""
        groups = [
            {"group": str(task.group), "admitted_step": task.ticket.admitted_step}
            for _, task in sorted(self.open_tasks.items())
        ]
        return {"own_tasks": self._own_count, "n": self._n, "groups": groups}

    def restore(self, state: Mapping[str, Any], resume: Callable[[GroupId, int], Ticket]) -> None:
        """See the protocol. Rows of the data set are handed out again, all n sessions of them; tasks of clients' own
        keys are dropped, and so are all where the run goes on with another number of samples per prompt."""
        self._own_count = int(state["own_tasks"])
        n = int(state.get("n", self._n))
        for entry in state["groups"]:
            group = GroupId.parse(entry["group"])
            ticket = resume(group, int(entry["admitted_step"]))
            samples = [SampleId(group.data_epoch, group.position, k) for k in range(n)]
            if group.position >= OWN_POSITIONS:
                self._lost.append((ticket, samples, RESTARTED))
            elif n != self._n:
                self._lost.append((ticket, samples, OTHER_SIZE))
            else:
                self._open(Task(DATA_SET, ticket, self._sampler.prompt(group), self._n))
