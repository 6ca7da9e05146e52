"""The faults: each is done to a live run, and returns the seconds until the run had recovered from it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil

from support.freezing import freeze
from support.storm import trouble
from support.storm.live import LiveRun, until


@dataclass(frozen=True)
class Fault:
    """One kind."""

    name: str
    promise: str
    """What docs/reliability.md says."""
    bound_s: float
    """Of the promise, on a machine that has nothing else to do; the table shows both."""
    do: Callable[[LiveRun, random.Random], float]
    weight: int = 1
    """How often it comes, relative to the others."""


def _one(run: LiveRun, role: str, source: random.Random) -> psutil.Process | None:
    """Any server of a role but the only one: what is lost then is another fault."""
    found = run.members(role)
    return found[source.choice(sorted(found))] if len(found) > 1 else None


def _kill_one(role: str) -> Callable[[LiveRun, random.Random], float]:
    def do(run: LiveRun, source: random.Random) -> float:
        until(lambda: len(run.members(role)) > 1, f"two {role} servers\n{run.said}")
        victim = _one(run, role, source)
        assert victim is not None
        at = time.time()
        victim.kill()
        return run.until_step(at)

    return do


def _freeze_one(role: str) -> Callable[[LiveRun, random.Random], float]:
    """For some seconds; the run must go on meanwhile or right after."""

    def do(run: LiveRun, source: random.Random) -> float:
        until(lambda: len(run.members(role)) > 1, f"two {role} servers\n{run.said}")
        victim = _one(run, role, source)
        assert victim is not None
        at = time.time()
        freeze(victim.pid)
        time.sleep(source.uniform(0.5, 4.0))
        victim.send_signal(signal.SIGCONT)
        return run.until_step(at)

    return do


def kill_trainer(run: LiveRun, source: random.Random) -> float:
    """The launcher starts it again, and the run goes back to its last checkpoint."""
    until(lambda: bool(run.members("trainer")), f"a trainer\n{run.said}")
    at = time.time()
    run.members("trainer")["trainer-0"].kill()
    return run.until_step(at)


def kill_controller(run: LiveRun, source: random.Random) -> float:
    """kill -9 of the command, which takes all its services with it, and the same command again."""
    at = time.time()
    run.process.kill()
    run.start_again()
    return run.until_step(at)


def reward_outage(run: LiveRun, source: random.Random) -> float:
    """All reward servers stand still for some seconds."""
    victims = list(run.members("reward").values())
    for victim in victims:
        freeze(victim.pid)
    time.sleep(source.uniform(0.5, 4.0))
    at = time.time()
    for victim in victims:
        victim.send_signal(signal.SIGCONT)
    return run.until_step(at)


DISK_FULL = "the run folder's disk is full for 1 – 3 s"

FAULTS = (
    Fault("a rollout server is killed", "its samples go on elsewhere", 5, _kill_one("rollout"), 5),
    Fault("a rollout server stands still for 0.5 – 4 s", "the run waits for it at most so long", 9,
          _freeze_one("rollout"), 3),
    Fault("a reward server is killed", "its samples are judged elsewhere", 5, _kill_one("reward"), 4),
    Fault("a reward server stands still for 0.5 – 4 s", "its samples are judged elsewhere", 9,
          _freeze_one("reward"), 2),
    Fault("all reward servers stand still for 0.5 – 4 s", "a step soon after they move", 5, reward_outage, 2),
    Fault("the trainer is killed", "training again from the last checkpoint", 30, kill_trainer, 3),
    Fault("the controller is killed", "all again from the last checkpoint", 40, kill_controller, 2),
    Fault("etcd stands still", "training goes on", 5, trouble.freeze_etcd, 2),
    Fault("the leader of etcd's three is killed", "training goes on", 5, trouble.kill_etcd_leader, 2),
    Fault("a rollout server moves a tenth of the time for 6 s", "no longer pause between two steps", 9,
          trouble.slow_server, 2),
    Fault(DISK_FULL, "goes on when there is room, or ends in words and resumes", 40, trouble.fill_disk, 2),
    Fault("a rollout server is cut off from etcd and all callers for longer than its lease",
          "the run goes on; when it can be reached, it works again", 15, trouble.partition, 2),
    Fault("a rollout server's link is 100 ms late, loses 2 %, and is reset", "the run goes on", 15,
          trouble.bad_link),
    Fault("a rollout server joins and drains", "it makes samples, and leaves without a loss", 20,
          trouble.join_and_drain, 2),
)  # fmt: skip


def schedule(
    seed: int, count: int, *, only: str = "", without: Collection[str] = ()
) -> tuple[list[Fault], random.Random]:
    """Which faults, in which order: each kind by its weight, in rounds, so that a short storm has many kinds. `only`: a
    word of the wanted ones; `without`: what can't be done here."""
    source = random.Random(seed)
    kinds = [fault for fault in FAULTS if only in fault.name and fault.name not in without]
    assert kinds, f"no fault has {only!r} in its name"
    drawn: list[Fault] = []
    while len(drawn) < count:
        once = source.sample(kinds, len(kinds))
        more = [fault for fault in kinds for _ in range(fault.weight - 1)]
        drawn += once + source.sample(more, len(more))
    return drawn[:count], source
