"""Groups on their way to the trainer, and what makes them.

A *group* is a prompt with its samples. With `argosy.max_staleness` above 0 groups are begun one by one, as a gate
admits them, and end in any order; a *group source* begins them (prompts of the data set through the rollout fleet,
sessions of somebody's own agents …), and the stream (stream.py) makes steps of what they end as.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, Outcome, Prompt


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to begin one group, until it is finished or given up.

    >>> Ticket(number=7, admitted_step=2).admitted_step
    2
    """

    number: int
    """Unique in the run; later groups have greater ones."""
    admitted_step: int
    """Step of the newest weights when it was admitted: none of its tokens is older."""


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group whose samples are all generated and scored."""

    prompt: Prompt
    completions: Mapping[SampleId, Completion]
    """Greedy answers of estimators that need a baseline (sample n of a prompt) among them."""
    outcomes: Mapping[SampleId, Outcome]
    """Of the same samples."""
    admitted_step: int
    """Of its ticket."""
    oldest_step: int
    """Step of the weights that sampled its oldest token; admitted_step where it has no token."""
    generate_s: float
    """Seconds from its first request to its last answer."""
    score_s: float
    """Seconds that scoring took beyond that."""


def oldest_step(completions: Mapping[SampleId, Completion], otherwise: int) -> int:
    """Step of the weights that sampled the oldest of some answers' tokens; `otherwise` where there are none."""
    return min(
        (run.version.step for row in completions.values() for run in row.versions if run.token_count),
        default=otherwise,
    )


class InFlight:
    """Tickets of groups under way, and how many there are of each step.

    >>> flying = InFlight()
    >>> flying.add(Ticket(1, 0)), flying.add(Ticket(2, 3)), flying.end(1)
    (None, None, True)
    >>> len(flying), dict(flying.steps), flying.end(1)
    (1, {3: 1}, False)
    """

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}
        self.steps: Counter[int] = Counter()
        """admitted_step → tickets."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets.values()))

    def add(self, ticket: Ticket) -> None:
        """A group begins."""
        self._tickets[ticket.number] = ticket
        self.steps[ticket.admitted_step] += 1

    def end(self, number: int) -> bool:
        """It is finished or given up; whether it was under way."""
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            _count_down(self.steps, ticket.admitted_step)
        return ticket is not None


class Finished:
    """Groups that are done and not yet taken, in the order in which they were, and how many there are of each step."""

    def __init__(self, groups: Iterable[FinishedGroup] = ()) -> None:
        self.groups = list(groups)
        self.steps = Counter(group.oldest_step for group in self.groups)
        """oldest_step → groups."""

    def __len__(self) -> int:
        return len(self.groups)

    def add(self, group: FinishedGroup) -> None:
        """One more is done."""
        self.groups.append(group)
        self.steps[group.oldest_step] += 1

    def take(self, wanted: Callable[[FinishedGroup], bool], since: int = 0) -> list[FinishedGroup]:
        """Take out those that are wanted, of the ones from place `since` on."""
        taken = [group for group in self.groups[since:] if wanted(group)]
        if taken:
            gone = set(map(id, taken))
            self.groups = [group for group in self.groups if id(group) not in gone]
            for group in taken:
                _count_down(self.steps, group.oldest_step)
        return taken


def _count_down(counts: Counter[int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class Admission(Protocol):
    """What a source works against: the gate before it, and the place where its groups go."""

    async def admit(self) -> Ticket:
        """Wait until one more group may begin."""
        ...

    def finish(self, ticket: Ticket, group: FinishedGroup) -> None:
        """Hand over a group. It is trained or dropped from here on, and entered so in the ledger; never waits."""
        ...

    def give_up(self, ticket: Ticket) -> None:
        """Nothing comes of it (a session that expired, data that ended): another group may begin in its place. What
        was drawn for it the source itself enters as dropped, with its reason."""
        ...


class GroupSource(Protocol):
    """Begins groups and finishes them.

    In the ledger a source enters `drawn`, `completed` and `scored`; the rollout stage enters `dispatched`; the stream
    and the loop enter `trained`, `baseline` and `dropped` of groups that were handed over.
    """

    async def run(self, admission: Admission) -> None:
        """Admit, begin and hand over groups until there will be no more of them. Cancelled when nobody wants more: then
        nothing that it began goes on."""
        ...

    def stop(self, ticket: Ticket, reason: str) -> None:
        """End a group at once, without waiting: the source enters its samples as dropped, and hands over nothing of it.
        Nothing happens if it has handed it over."""
        ...

    def open_groups(self) -> frozenset[GroupId]:
        """Those that were drawn, and neither handed over nor given up."""
        ...

    def sampler_state(self) -> Mapping[str, Any]:
        """Where it is in the data order (`PromptSampler.state`); empty for a source that has none."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What was begun and isn't handed over, with the tokens that it has, as JSON values. Taken between two
        steps, while `run` goes on."""
        ...

    def restore(self, state: Mapping[str, Any], resume: Callable[[GroupId, int], Ticket]) -> None:
        """Before `run`: go on from what `state` gave. `resume(group, admitted_step)` gives back the ticket of each
        group that was under way; those go on before any other is begun."""
        ...
