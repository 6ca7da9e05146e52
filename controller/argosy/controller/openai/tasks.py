"""Tasks: groups of sessions that try the same thing, from their admission to the trainer or to the books as dropped.

A task is a row of the data set, whose n sessions are handed out one after the other, or a key that the client chose
("the same key is the same task"). It is finished when all its sessions are over and enough of them have a reward
(`argosy.openai.min_rewarded`), and dropped as a whole as soon as that can't be any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.controller.groups import FinishedGroup, Ticket, oldest_step
from argosy.controller.openai.sessions import Branch, Session
from argosy.controller.openai.trajectories import absent_sample, group_prompt, sample_of
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, Outcome, Prompt, Scored

OWN_POSITIONS = 10**9
"""Tasks that aren't of the data set have group ids of data epoch 0 from this position on, beyond any data set."""


@dataclass(slots=True, eq=False)
class Task:
    """One group in the making."""

    key: str
    """The client's; empty for a row of the data set."""
    ticket: Ticket
    prompt: Prompt
    """Without tokens where the sessions bring their own."""
    n: int
    begun: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    used: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When a session of it last began or ended."""
    sessions: list[Session] = field(default_factory=list)
    over: bool = False
    """Handed over, or dropped."""

    @property
    def group(self) -> GroupId:
        """Its group id."""
        return self.prompt.group

    @property
    def samples(self) -> Iterator[SampleId]:
        """Of all its sessions, begun or not."""
        return (SampleId(self.group.data_epoch, self.group.position, k) for k in range(self.n))

    @property
    def has_room(self) -> bool:
        """Whether it has sessions that nobody took yet."""
        return not self.over and len(self.sessions) < self.n

    def begin(self, session_id: str, metadata: Mapping[str, Any]) -> Session:
        """Its next session."""
        sample = SampleId(self.group.data_epoch, self.group.position, len(self.sessions))
        session = Session(session_id, sample, metadata)
        self.sessions.append(session)
        self.used = asyncio.get_running_loop().time()
        return session

    def verdict(self, least: int) -> bool | None:
        """True: it is finished; False: it can't be any more; None: it goes on. `least` sessions must have a reward."""
        rewarded = sum(session.state == "rewarded" for session in self.sessions)
        lost = sum(session.state == "ended" for session in self.sessions)
        if self.n - lost < least:
            return False
        return True if rewarded + lost == self.n else None


def finished_group(
    task: Task, rule: str, decode: Callable[[Sequence[int]], str]
) -> tuple[FinishedGroup | None, Mapping[str, float]]:
    """What goes to the trainer, and counts; None if the sessions' prompts don't even begin with the same token."""
    branches: dict[SampleId, Branch] = {}
    for session in task.sessions:
        branch = session.trained_branch(rule)
        if session.state == "rewarded" and branch is not None:
            branches[session.sample_id] = branch
    prompt = group_prompt(task.prompt, list(branches.values()), decode)
    counts = {
        "openai/extra_branches": float(sum(max(len(session.branches) - 1, 0) for session in task.sessions)),
        "openai/untrained_branch_tokens": float(
            sum(
                session.left_out(branches[session.sample_id])
                for session in task.sessions
                if session.sample_id in branches
            )
        ),
    }
    if not prompt.token_ids:
        return None, counts
    completions: dict[SampleId, Completion] = {}
    outcomes: dict[SampleId, Outcome] = {}
    for session in task.sessions:
        sample = session.sample_id
        if sample in branches:
            completions[sample] = sample_of(session, branches[sample], prompt, decode)
            outcomes[sample] = session.outcome or Scored(0.0)
        else:
            completions[sample], outcomes[sample] = absent_sample(session)
    group = FinishedGroup(
        prompt=prompt,
        completions=completions,
        outcomes=outcomes,
        admitted_step=task.ticket.admitted_step,
        oldest_step=oldest_step(completions, task.ticket.admitted_step),
        generate_s=asyncio.get_running_loop().time() - task.begun,
        score_s=0.0,
    )
    return group, counts
