"""The rollout service with a tiny model and an engine that goes wrong on a signal, through the real host.

SIGUSR1: the engine's loop is held up for 3 s. SIGUSR2: for 3 s the engine computes in pure Python between its steps.
SIGHUP: the engine's thread dies. SIGALRM: the event loop is held up for a minute. The model takes 1.5 s longer to load
than it would.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from typing import Any

from argosy.rollout.__main__ import SERVICE
from argosy.rpc.host import main

HELD_S = 3.0
BLOCKED_S = 60.0

loops: list[Any] = []
"""The engine's, once it is there."""


def build(config: Any) -> Any:
    time.sleep(1.5)
    core = SERVICE.build(config)
    loops.append(core.engine.loop)
    return core


def hold(*_: object) -> None:
    loops[0].call(lambda: time.sleep(HELD_S))


def compute(*_: object) -> None:
    until = time.monotonic() + HELD_S

    def work() -> None:
        slice_end = time.monotonic() + 0.02
        while time.monotonic() < slice_end:
            sum(range(100))
        if time.monotonic() < until:
            loops[0].call(work)

    loops[0].call(work)


def die(*_: object) -> None:
    loops[0]._commands.append((None, None))  # not even a future: the loop fails outside of all that it guards
    loops[0].call(lambda: None)


def block(*_: object) -> None:
    time.sleep(BLOCKED_S)  # in the main thread, which the loop runs in


if __name__ == "__main__":
    for number, action in (
        (signal.SIGUSR1, hold), (signal.SIGUSR2, compute), (signal.SIGHUP, die), (signal.SIGALRM, block)
    ):  # fmt: skip
        signal.signal(number, action)
    main(dataclasses.replace(SERVICE, build=build))
