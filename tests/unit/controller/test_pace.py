"""Which servers fall behind: by tokens for each sample and second, whatever the lengths, loads, and pauses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from argosy.controller.stages.pace import LEAST_SPEED, LONGEST_WINDOW_S, LOOK_S, MANY, Pace

SLOTS = 8


class World:
    """Servers with samples that each make so many tokens in a second, told every second."""

    def __init__(self, rates: Mapping[str, float], samples: Mapping[str, int]) -> None:
        self.rates, self.samples, self.now = dict(rates), samples, 0.0
        self.pace = Pace(0.0)
        self.held: set[str] = set()
        for member, count in samples.items():
            for _ in range(count):
                self.pace.begin(member, 0.0, SLOTS)

    def go_on(self, seconds: float) -> tuple[set[str], set[str]]:
        """(who was slow, who stood still) meanwhile."""
        slow, still = set[str](), set[str]()
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK_S
            for member, rate in self.rates.items():
                for _ in range(min(self.samples[member], SLOTS)):
                    self.pace.made(member, int(rate * LOOK_S))
            found = self.pace.compare(self.now, dict.fromkeys(self.rates, SLOTS), self.held)
            slow |= set(found[0])
            still |= set(found[1])
        return slow, still


@pytest.mark.parametrize("count", [2, 3, MANY + 4])
def test_only_a_server_that_is_much_slower_than_the_others_is_slow(count: int) -> None:
    names = [f"s{number:02}" for number in range(count)]
    even = World({name: 40.0 - number for number, name in enumerate(names)}, dict.fromkeys(names, 4))
    assert even.go_on(60) == (set(), set())
    even.rates[names[1]] = 4.0
    assert even.go_on(10)[0] == {names[1]}
    assert even.pace.speed(names[1]) == pytest.approx(0.1, abs=0.06)
    assert even.pace.speed(names[0]) == 1


def test_one_without_any_token_stands_still_after_two_windows() -> None:
    world = World({"a": 40, "b": 40, "c": 0}, {"a": 4, "b": 4, "c": 4})
    assert world.go_on(5) == ({"c"}, set())
    assert world.go_on(5) == ({"c"}, {"c"})
    assert world.pace.speed("c") == LEAST_SPEED
    world.rates["c"] = 40
    world.go_on(5)
    assert world.pace.speed("c") == 1


def test_many_samples_at_one_server_do_not_make_it_slow() -> None:
    world = World({"a": 5, "b": 50}, {"a": 8, "b": 1})  # 40 tokens/s together, and 50
    assert world.go_on(30) == (set(), set())


def test_samples_that_wait_at_a_server_are_not_held_against_it() -> None:
    world = World({"a": 10, "b": 10}, {"a": 64, "b": 8})  # of those at a, 8 run
    assert world.go_on(30) == (set(), set())


def test_nothing_follows_of_a_server_that_is_told_to_hold_still() -> None:
    world = World({"a": 40, "b": 0, "c": 40}, {"a": 4, "b": 4, "c": 4})
    world.held.add("b")
    assert world.go_on(30) == (set(), set())
    assert world.pace.speed("b") == 1


def test_where_all_stand_still_or_one_is_alone_nobody_is_slow() -> None:
    assert World({"a": 0, "b": 0}, {"a": 4, "b": 4}).go_on(30) == (set(), set())
    assert World({"a": 0.5}, {"a": 4}).go_on(30) == (set(), set())
    assert World({"a": 40, "b": 0}, {"a": 4, "b": 0}).go_on(30) == (set(), set()), "it has nothing to do"


def test_tokens_that_come_in_large_runs_are_waited_for() -> None:
    """An engine that tells every 200 tokens, of which a sample makes 10 in a second: 20 s without any are usual."""
    pace, slots = Pace(0.0), {"a": SLOTS, "b": SLOTS}
    for member in slots:
        pace.begin(member, 0.0, SLOTS)
    for step in range(1, 60):
        now = step * LOOK_S
        if now % 20 == 0:
            pace.made("a", 200)
        if now % 20 == 10:
            pace.made("b", 200)
        assert pace.compare(now, slots, ()) == ([], [])


def test_what_was_seen_long_ago_is_forgotten() -> None:
    world = World({"a": 40, "b": 1}, {"a": 4, "b": 4})
    world.go_on(5)
    assert world.pace.speed("b") < 0.1
    for _ in range(4):
        world.pace.end("b", world.now, SLOTS)
    world.rates["b"] = 0
    world.go_on(6 * LONGEST_WINDOW_S)
    assert world.pace.speed("b") == 1, "it gets samples again"
    world.pace.forget("a")
    assert world.pace.speed("a") == 1
