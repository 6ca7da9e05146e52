"""A session: the calls that make one trajectory, with the very tokens that were sampled.

A call *continues* a branch if its messages begin with that branch's conversation up to one of the policy's answers
(`messages.same_messages`, and the same tools). Then the branch's own token ids are what the engine goes on from, and
only what the template writes for the new messages is encoded (case C3).

    [prompt] answer [closing, tool result, opening] answer …
     root     1 1 1  0 0 0 0 0 0 0 0 0 0 0 0 0 0 0  1 1 1      response_mask

A call that begins with no such conversation, or that goes back to an earlier answer, or that comes while the branch is
still being answered, starts a new branch: from the earlier answer's tokens where there is one, else from its own
prompt. What is trained of a session with several branches, `argosy.openai.train_branch` says.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from argosy.controller.openai.messages import message_key
from argosy.text.chat import Message
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, Generated, Scored, VersionRun


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the policy within a branch."""

    message_count: int
    """Messages of the conversation, this answer included."""
    start: int
    """Index of its first token among the tokens after the root prompt."""
    stop: int
    """Index after its last one."""
    finish_reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True)
class Branch:
    """A conversation and its tokens. A call that continues it makes a longer one in its place."""

    attempt: int
    """Of the sample id, so that two branches never draw the same noise."""
    prompt_ids: tuple[int, ...]
    """The root: the first call's templated messages."""
    tools: str = ""
    """The tools that were offered, as canonical JSON: they stand in the root."""
    keys: tuple[str, ...] = ()
    """`message_key` of each message."""
    messages: tuple[Message, ...] = ()
    generated: Generated = field(default_factory=Generated)
    """All that follows the root; tokens of the template have log-prob 0 and the version of the answer before them."""
    mask: tuple[int, ...] = ()
    """1: sampled by the policy; one per token of `generated`."""
    turns: tuple[Turn, ...] = ()

    @property
    def sampled_count(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.mask)

    def until(self, turn: Turn) -> Branch:
        """The branch as it was after that answer."""
        count = turn.stop
        return replace(
            self,
            keys=self.keys[: turn.message_count],
            messages=self.messages[: turn.message_count],
            generated=Generated(
                self.generated.token_ids[:count],
                self.generated.log_probs[:count],
                first_versions(self.generated.versions, count),
            ),
            mask=self.mask[:count],
            turns=tuple(one for one in self.turns if one.stop <= count),
        )

    def asked(self, messages: Sequence[Message], token_ids: Sequence[int]) -> Branch:
        """With further messages of others, and what the template writes for them (none at the root)."""
        versions = list(self.generated.versions)
        if token_ids:
            versions[-1] = VersionRun(versions[-1].version, versions[-1].token_count + len(token_ids))
        return replace(
            self,
            keys=(*self.keys, *map(message_key, messages)),
            messages=(*self.messages, *messages),
            generated=Generated(
                (*self.generated.token_ids, *token_ids),
                (*self.generated.log_probs, *([0.0] * len(token_ids))),
                tuple(versions),
            ),
            mask=(*self.mask, *([0] * len(token_ids))),
        )

    def answered(self, message: Message, completion: Completion) -> Branch:
        """With the policy's answer: `completion` holds the tokens so far and the sampled ones after them."""
        start, stop = len(self.mask), len(completion.token_ids)
        return replace(
            self,
            keys=(*self.keys, message_key(message)),
            messages=(*self.messages, message),
            generated=Generated(completion.token_ids, completion.log_probs, completion.versions),
            mask=(*self.mask, *([1] * (stop - start))),
            turns=(*self.turns, Turn(len(self.keys) + 1, start, stop, completion.finish_reason)),
        )


def first_versions(runs: Sequence[VersionRun], count: int) -> tuple[VersionRun, ...]:
    """Run lengths over the first `count` tokens."""
    kept: list[VersionRun] = []
    for run, end in zip(runs, accumulate(run.token_count for run in runs), strict=True):
        left = count - (end - run.token_count)
        if left > 0:
            kept.append(VersionRun(run.version, min(left, run.token_count)))
    return tuple(kept)


def tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools as canonical JSON; empty for none."""
    return json.dumps([dict(tool) for tool in tools], sort_keys=True, default=str) if tools else ""


def task_key(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """Names the task of a session that begins with these messages, where its client names none: equal beginnings are
    the same task."""
    said = json.dumps([tools_key(tools), *map(message_key, messages)])
    return f"prompt:{hashlib.blake2b(said.encode(), digest_size=16).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call goes on in its session."""

    branch: Branch | None
    """Up to the answer that the call continues; None: it begins a conversation of its own."""
    attempt: int
    new_messages: tuple[Message, ...]
    """What the call adds: all of its messages where there is no branch."""


@dataclass(slots=True, eq=False)
class Session:
    """One trajectory in the making."""

    session_id: str
    sample_id: SampleId
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The client's own; stays beside the sample in dumps."""
    used: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When a call last began or ended, by the event loop's clock."""
    branches: dict[int, Branch] = field(default_factory=dict)
    """By attempt."""
    last: int = 0
    """Attempt of the branch that was answered last."""
    call_count: int = 0
    running: set[int] = field(default_factory=set)
    """Attempts that are being answered right now."""
    state: str = "open"
    """"open", "rewarded" or "ended"."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is no longer open."""
    outcome: Scored | None = None
    turn_rewards: tuple[float, ...] = ()
    """One for each answer of the trained branch; empty: none."""
    reason: str = ""
    """Why it ended without a reward."""
    reward: str = ""
    """What it was rewarded with, as canonical JSON: a repeat must say the same."""
    _attempts: int = 0

    def place(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Place:
        """Where a call with these messages goes on: after the longest conversation that it begins with."""
        keys, offered = tuple(map(message_key, messages)), tools_key(tools)
        found = [
            (turn.message_count, branch.attempt == self.last, branch.attempt, turn)
            for branch in self.branches.values()
            for turn in branch.turns
            if branch.tools == offered
            and turn.message_count < len(keys)
            and branch.keys[: turn.message_count] == keys[: turn.message_count]
        ]
        if not found:
            return Place(None, self._next_attempt(), tuple(messages))
        count, _, attempt, turn = max(found, key=lambda one: one[:3])
        branch, new_messages = self.branches[attempt], tuple(messages[count:])
        if turn == branch.turns[-1] and attempt not in self.running:
            return Place(branch, attempt, new_messages)
        attempt = self._next_attempt()
        return Place(replace(branch.until(turn), attempt=attempt), attempt, new_messages)

    def choices(self, place: Place, n: int) -> list[int]:
        """Attempts for n answers at one place; each but the first is a branch of its own."""
        return [place.attempt, *(self._next_attempt() for _ in range(n - 1))]

    def keep(self, branch: Branch) -> None:
        """A branch has its next answer."""
        self.branches[branch.attempt] = branch
        self.last = branch.attempt

    def rewarded(self, outcome: Scored, turn_rewards: tuple[float, ...], said: str) -> None:
        """It is over with a reward; `said` is that reward as canonical JSON."""
        self.state, self.outcome, self.turn_rewards, self.reward = "rewarded", outcome, turn_rewards, said
        self.over.set()

    def end(self, reason: str) -> None:
        """It is over without a reward: it gets no more calls, and the running ones end."""
        self.state, self.reason = "ended", reason
        self.branches.clear()
        self.over.set()

    def idle_since(self, seconds: float, now: float) -> bool:
        """Whether it is open and nobody has used it for that long."""
        return self.state == "open" and not self.running and now - self.used > seconds

    def _next_attempt(self) -> int:
        attempt, self._attempts = self._attempts, self._attempts + 1
        return attempt

    def trained_branch(self, rule: str) -> Branch | None:
        """The branch that is trained; None if the policy said nothing.

        "last": the one that was answered last; "longest": that with most sampled tokens (of equals, the newest).
        """
        if not self.branches:
            return None
        if rule == "last":
            return self.branches[self.last]
        return max(self.branches.values(), key=lambda branch: (branch.sampled_count, branch.attempt))

    def left_out(self, chosen: Branch) -> int:
        """Sampled tokens of other branches, which are not trained; what branches share is counted once for each."""
        return sum(branch.sampled_count for branch in self.branches.values()) - chosen.sampled_count
