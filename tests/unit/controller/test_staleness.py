"""The gate and the choice of groups as pure functions, over every order in which groups may be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.controller.staleness import choose, deadline_of, is_ready, room, staleness_metrics
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, VersionRun


@dataclass
class Group:
    number: int
    admitted: int
    oldest: int = 0


@dataclass
class Run:
    """A run without time: what happens next is drawn."""

    batch_size: int
    max_staleness: int
    spare: int
    pick: Callable[[int], int]
    """A number below its argument, drawn."""
    synced: int = 0
    taken: int = 0
    training: bool = False
    admitted: list[Group] = field(default_factory=list)
    in_flight: list[Group] = field(default_factory=list)
    finished: list[Group] = field(default_factory=list)
    trained: dict[int, int] = field(default_factory=dict)
    """Group → step."""
    dropped: set[int] = field(default_factory=set)
    most_open: int = 0

    def deadline(self, group: Group, oldest: int) -> int:
        return deadline_of(oldest, self.max_staleness)

    def admit(self) -> None:
        open_count = len(self.in_flight) + len(self.finished)
        free = room(open_count, self.synced, self.taken, self.batch_size, self.max_staleness, self.spare)
        for _ in range(free):
            group = Group(len(self.admitted), self.synced)
            self.admitted.append(group)
            self.in_flight.append(group)
        self.most_open = max(self.most_open, len(self.in_flight) + len(self.finished))

    def end_one(self) -> None:
        """Some group under way is done; every now and then it has no spread. Its first token may have come late."""
        group = self.in_flight.pop(self.pick(len(self.in_flight)))
        group.oldest = group.admitted + self.pick(self.synced - group.admitted + 1)
        if self.pick(5) == 0:
            self.dropped.add(group.number)
        else:
            self.finished.append(group)

    def take(self) -> bool:
        """The trainer takes a step if there is one."""
        step = self.taken + 1
        finished = [self.deadline(group, group.oldest) for group in self.finished]
        in_flight = [self.deadline(group, group.admitted) for group in self.in_flight]
        places = choose(step, self.batch_size, finished, in_flight, self.spare)
        assert places == choose(step, self.batch_size, finished, reversed(in_flight), self.spare), "not a function"
        counts = Counter(finished), Counter(in_flight)
        assert is_ready(step, self.batch_size, *counts, self.spare) == (places is not None)
        if places is None:
            return False
        assert len(set(places)) == self.batch_size
        for place in places:
            group = self.finished[place]
            assert step - 1 - group.oldest <= self.max_staleness, "too old"
            assert group.number not in self.trained
            self.trained[group.number] = step
        self.finished = [group for place, group in enumerate(self.finished) if place not in places]
        for group in [g for g in self.finished if self.deadline(g, g.oldest) <= step]:
            self.leave_out(group, self.finished)
        for group in [g for g in self.in_flight if self.deadline(g, g.admitted) <= step]:
            self.leave_out(group, self.in_flight)
        self.taken, self.training = step, True
        return True

    def leave_out(self, group: Group, among: list[Group]) -> None:
        assert self.spare, f"group {group.number} was due and not taken: nothing is thrown away without over-sampling"
        among.remove(group)
        self.dropped.add(group.number)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2**32))
def test_every_order_of_ends_gives_steps_of_groups_that_are_young_enough(
    batch_size: int, max_staleness: int, spare: int, seed: int
) -> None:
    """No group exceeds K, none starves, none is thrown away, the numbers add up, and it never comes to a standstill."""
    run = Run(batch_size, max_staleness, spare, Random(seed).randrange)
    while run.synced < 8:
        run.admit()
        can_sync = run.training
        can_take = not run.training and bool(run.finished)
        if can_take and run.pick(2) and run.take():
            continue
        if can_sync and (not run.in_flight or run.pick(3) == 0):
            run.synced, run.training = run.taken, False
        elif run.in_flight:
            run.end_one()
        else:
            assert run.take(), f"a standstill: {run}"
    open_numbers = {group.number for group in run.in_flight + run.finished}
    assert len(run.trained) == batch_size * run.taken
    assert run.trained.keys() | run.dropped | open_numbers == {group.number for group in run.admitted}
    assert len(run.trained) + len(run.dropped) + len(open_numbers) == len(run.admitted)
    assert run.most_open <= (max_staleness + 1) * batch_size + spare, "the queue has a bound"
    for group in run.admitted:
        if group.number in run.trained:
            assert run.trained[group.number] <= group.oldest + max_staleness + 1
        elif group.number in open_numbers:
            oldest = group.oldest if group in run.finished else group.admitted
            assert run.taken < run.deadline(group, oldest), f"group {group.number} starves"


def test_due_is_more_than_too_old_in_the_next_step() -> None:
    """Three groups of step 0 and a newer one, with K=2: whoever takes the newer one at step 2 is late at step 3."""
    assert choose(1, 1, [3], [3, 3]) == [0]
    assert choose(2, 1, [4], [3, 3]) is None
    assert choose(2, 1, [4, 3], [3]) == [1]
    assert choose(3, 1, [4, 3], []) == [1]


def test_the_rest_of_a_step_is_what_was_done_first() -> None:
    assert choose(1, 2, [5, 4, 3], [3, 3]) == [0, 1]
    assert choose(1, 3, [5, 1, 4, 3], []) == [1, 0, 2]
    assert choose(1, 3, [5, 4], []) is None


@settings(max_examples=300)
@given(st.integers(1, 4), st.lists(st.integers(3, 7)), st.lists(st.integers(3, 7)), st.integers(0, 3))
def test_counts_alone_say_whether_there_is_a_step(
    batch_size: int, finished: list[int], unfinished: list[int], spare: int
) -> None:
    places = choose(3, batch_size, finished, unfinished, spare)
    assert is_ready(3, batch_size, Counter(finished), Counter(unfinished), spare) == (places is not None)


def test_a_synchronous_run_has_one_step_under_way() -> None:
    assert room(0, synced_step=0, taken_steps=0, batch_size=3, max_staleness=0) == 3
    assert room(0, synced_step=0, taken_steps=1, batch_size=3, max_staleness=0) == 0
    assert room(0, synced_step=1, taken_steps=1, batch_size=3, max_staleness=0) == 3


def completion(k: int, *runs: tuple[int, int]) -> Completion:
    versions = tuple(VersionRun(PolicyVersion("l0", step, "d"), count) for step, count in runs)
    count = sum(count for _, count in runs)
    return Completion(SampleId(0, 0, k), (7,) * count, (-0.1,) * count, versions, FinishReason.STOP)


def test_ages_are_of_tokens_and_of_samples_by_their_oldest_token() -> None:
    rows = [completion(0, (2, 4)), completion(1, (0, 1), (2, 3)), completion(2)]
    found = staleness_metrics(3, {row.sample_id: row for row in rows})
    assert found == {
        "staleness/mean": pytest.approx(2 / 8),
        "staleness/max": 2.0,
        "staleness/sample_mean": 1.0,
        "staleness/mixed_version_fraction": 0.5,
    }
    assert staleness_metrics(3, {rows[2].sample_id: rows[2]}) == {}
