"""The lanes and the quotas by themselves: what is taken when, and that nothing is lost or judged twice."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable

import pytest

from argosy.reward import lanes as lanes_module
from argosy.reward.jobs import Job
from argosy.reward.lanes import Lanes
from argosy.reward.quota import Quotas
from argosy.types.records import Failed, Scored


def job(name: str = "a", *, deadline_s: float = 600.0) -> Job:
    return Job({"id": name, "samples": [{"data_source": "s"}]}, time.monotonic() + deadline_s)


def make(worker_count: int = 1, *, timeout_s: float = 1.0, most_slow: int = 100, processors: int = 100) -> Lanes:
    return Lanes(timeout_s=timeout_s, worker_count=worker_count, most_slow=most_slow, processors=processors)


def taken(take: Callable[[], Job | None], seconds: float) -> Job | None:
    """What somebody gets who waits for so long; None is nothing."""
    found: list[Job | None] = []
    thread = threading.Thread(target=lambda: found.append(take()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def test_the_fast_lane_keeps_its_order_and_the_slow_one_goes_by_deadlines() -> None:
    lanes = make()
    first, second = job("first"), job("second")
    lanes.put([first, second])
    assert [lanes.take(), lanes.take()] == [first, second]
    late, soon = job(deadline_s=900), job(deadline_s=500)
    lanes.put_aside(late)
    lanes.put_aside(soon)
    assert [lanes.take_slow(), lanes.take_slow()] == [soon, late]


def test_what_is_put_aside_goes_back_before_its_deadline_ahead_of_all_others() -> None:
    lanes = make(timeout_s=10.0)
    other, aside = job("other"), job("aside", deadline_s=21.5)
    lanes.put([other])
    lanes.put_aside(aside)
    assert lanes.take() is other  # the last moment is 1.5 s away
    assert taken(lanes.take, 30.0) is aside
    assert aside.hurried
    lanes.put([other])
    lanes.put_aside(aside)
    assert [lanes.take(), lanes.take()] == [aside, other]


def test_many_that_wait_go_back_the_earlier() -> None:
    lanes = make(timeout_s=1.0)
    lanes.took(10.0)
    few = [job(deadline_s=50.0) for _ in range(2)]
    for one in few:
        lanes.put_aside(one)
    lanes.put([other := job()])
    assert lanes.take() is other  # 2 x 10 s fit into 48 s
    for _ in range(4):
        lanes.put_aside(job(deadline_s=50.0))
    assert lanes.take() in few  # 6 x 10 s don't


def test_a_starved_slow_lane_is_helped_by_those_who_have_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "_QUIET_S", 0.2)
    monkeypatch.setattr(lanes_module, "_PATIENCE_S", 0.2)
    lanes = make(worker_count=2)
    waits, runs = job("waits"), job("runs")
    lanes.put_aside(runs)
    started = threading.Event()

    def slow_worker() -> None:
        assert lanes.take_slow() is runs
        started.set()

    threading.Thread(target=slow_worker, daemon=True).start()
    assert started.wait(20)
    lanes.put_aside(waits)
    assert taken(lanes.take, 0.6) is None, "one worker stays free for what comes"
    assert taken(lanes.take, 20) is waits
    assert taken(lanes.take, 20) is runs, "it doesn't come to its end in the slow lane"
    assert waits.hurried
    assert runs.hurried


def test_busy_fast_workers_help_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(lanes_module, "_PRESSED_S", 0.05)
    lanes = make(worker_count=1)
    lanes.put_aside(job("aside"))
    lanes.put([waited := job("waited")])
    time.sleep(0.1)
    assert lanes.take() is waited
    assert taken(lanes.take, 0.3) is None, "the fast lane was full a moment ago"


def test_without_processors_to_spare_the_slow_lane_waits_for_the_fast_one() -> None:
    lanes = make(worker_count=2, processors=2)
    lanes.put([other := job("other")])
    lanes.put_aside(aside := job("aside"))
    found: list[Job | None] = []
    slow = threading.Thread(target=lambda: found.append(lanes.take_slow()), daemon=True)
    slow.start()
    slow.join(0.2)
    assert not found
    assert lanes.take() is other
    slow.join(20)
    assert found == [aside]
    spare = make(worker_count=2, processors=3)
    spare.put([job()])
    for _ in range(2):
        spare.put_aside(job())
    began, over = threading.Event(), threading.Event()

    def slow_worker() -> None:  # it stays: a thread that ended may give its number to the next
        spare.take_slow()
        began.set()
        over.wait(60)

    threading.Thread(target=slow_worker, daemon=True).start()
    assert began.wait(20)
    assert taken(spare.take_slow, 0.2) is None, "one processor, one sample"
    over.set()


def test_the_first_verdict_counts() -> None:
    one = job()
    one.finish([Scored(1.0)])
    one.finish([Scored(0.0)])
    one.finish(RuntimeError("too late"))
    assert one.future.result() == [Scored(1.0)]


def test_cancelled_jobs_do_not_fill_the_slow_lane() -> None:
    lanes = make(most_slow=10)
    for _ in range(200):
        lanes.put_aside(gone := job())
        assert gone.future.cancel()
    assert lanes.slow_waiting <= 11


def test_closing_aborts_what_waits_and_what_comes() -> None:
    lanes = make()
    jobs = [job() for _ in range(4)]
    lanes.put(jobs[:1])
    lanes.put_aside(jobs[1])
    lanes.close()
    lanes.put(jobs[2:3])
    lanes.put_aside(jobs[3])
    assert lanes.take() is None
    assert lanes.take_slow() is None
    for one in jobs:
        [outcome] = one.future.result(timeout=0)
        assert isinstance(outcome, Failed)
        assert outcome.reason == "aborted"


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_each_job_ends_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that put jobs aside, give them back, or judge them, at random; callers that cancel at random."""
    monkeypatch.setattr(lanes_module, "_QUIET_S", 0.0)
    monkeypatch.setattr(lanes_module, "_PATIENCE_S", 0.01)
    chance, lanes = random.Random(seed), make(worker_count=3, timeout_s=0.05)
    ends: list[Job] = []

    def fast(own: random.Random) -> None:
        while (one := lanes.take()) is not None:
            time.sleep(own.random() * 0.002)
            if not one.hurried and own.random() < 0.3:
                lanes.put_aside(one)
            else:
                one.finish([Scored(1.0)])

    def slow(own: random.Random) -> None:
        while (one := lanes.take_slow()) is not None:
            time.sleep(own.random() * 0.05)
            if own.random() < 0.3:
                one.hurried = True
                lanes.put_aside(one)
            else:
                one.finish([Scored(1.0)])

    threads = [threading.Thread(target=fast, args=(random.Random(k),)) for k in range(3)]
    threads += [threading.Thread(target=slow, args=(random.Random(k),)) for k in range(2)]
    for thread in threads:
        thread.start()
    jobs = [job(str(k), deadline_s=chance.choice([0.2, 1.0, 600.0])) for k in range(300)]
    for one in jobs:
        one.future.add_done_callback(lambda _, one=one: ends.append(one))  # type: ignore[misc]
    for first in range(0, len(jobs), 10):
        lanes.put(jobs[first : first + 10])
        time.sleep(chance.random() * 0.01)
        chance.choice(jobs[: first + 10]).future.cancel()
    for one in jobs:
        if not one.future.cancelled():
            assert one.future.result(timeout=60) == [Scored(1.0)]
    lanes.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(ends) == len(jobs)
    assert set(ends) == set(jobs)


def learned(costs: list[float], least_s: float = 0.0) -> float | None:
    quotas = Quotas(lambda source: least_s)
    for cost in costs:
        quotas.note("s", cost)
    return quotas.quota_s("s")


def test_a_quota_is_some_ordinary_samples_and_above_the_costliest_of_them() -> None:
    assert learned([0.002] * 63) is None, "too little is known"
    assert learned([0.002] * 64) == pytest.approx(0.01)
    assert learned([0.002] * 126 + [0.4] * 2) == pytest.approx(0.01), "the exceptions don't raise it"
    assert learned([0.002] * 110 + [0.1] * 18) == pytest.approx(0.15), "1 in 7 is ordinary, and stays in the fast lane"
    assert learned([0.002] * 64, least_s=0.1) == pytest.approx(0.1)


def test_nobody_is_put_aside_where_many_samples_are_costly() -> None:
    assert learned([0.002] * 122 + [math.inf] * 6) == pytest.approx(0.01)
    assert learned([0.002] * 115 + [math.inf] * 13) is None


def test_quotas_are_of_a_source_and_their_number_is_bounded() -> None:
    quotas = Quotas(lambda source: 0.0)
    for _ in range(64):
        quotas.note("cheap", 0.001)
        quotas.note("dear", 0.1)
    assert quotas.quota_s("cheap") == pytest.approx(0.005)
    assert quotas.quota_s("dear") == pytest.approx(0.5)
    for k in range(300):
        quotas.note(f"reasoning_gym/{k}", 0.001)
    assert quotas.quota_s("cheap") is None
    assert len(quotas._sources) == 256
