from __future__ import annotations

import json

import pytest

from argosy.controller.rewards.failures import FailureWindow, RewardsUnusableError
from argosy.types.records import Abstained, Failed, Outcome, Scored

BAD, GOOD = Failed("unavailable", "127.0.0.1:4711 can't be reached"), Scored(0.0)


def batch(rare_failures: int, rare: int = 2, common: int = 14) -> list[tuple[str, Outcome]]:
    of_rare: list[tuple[str, Outcome]] = [("rare", BAD if k < rare_failures else GOOD) for k in range(rare)]
    return [*[("common", GOOD)] * common, *of_rare]


def test_g11_a_dead_service_of_a_small_source_ends_the_run() -> None:
    """An eighth of each batch fails, which no limit on batches would ever see."""
    window = FailureWindow(0.5, size=16)
    for _ in range(7):
        window.add(batch(2))
    with pytest.raises(RewardsUnusableError, match=r"'rare': 16 of its last 16 samples.*2 times 'unavailable'"):
        window.add(batch(2))


def test_one_bad_batch_is_forgotten() -> None:
    window = FailureWindow(0.5, size=16)
    window.add(batch(2))
    window.add(batch(2))
    for _ in range(40):
        window.add(batch(0))
    window.add(batch(2))


def test_g11_a_service_that_dies_late_is_noticed_as_soon_as_one_that_was_never_there() -> None:
    window = FailureWindow(0.5, size=16)
    for _ in range(100):
        window.add(batch(0))
    for _ in range(4):
        window.add(batch(2))
    with pytest.raises(RewardsUnusableError, match=r"10 of its last 16 samples"):
        window.add(batch(2))


def test_f11_a_limit_of_zero_stands_no_failure_and_one_stands_all() -> None:
    strict = FailureWindow(0.0, size=2)
    strict.add(batch(0))
    with pytest.raises(RewardsUnusableError):
        strict.add(batch(1))
    lenient = FailureWindow(1.0, size=2)
    lenient.add([("all", BAD)] * 50)


def test_abstaining_is_no_failure() -> None:
    FailureWindow(0.0, size=1).add([("all", Abstained("no truth"))] * 5)


def test_the_window_survives_a_checkpoint() -> None:
    window, other = FailureWindow(0.5, size=16), FailureWindow(0.5, size=16)
    for _ in range(7):
        window.add(batch(2))
    other.restore(json.loads(json.dumps(window.state())))
    with pytest.raises(RewardsUnusableError):
        other.add(batch(2))
