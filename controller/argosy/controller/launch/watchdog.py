"""Kills what a dead launcher left behind: `python watchdog.py TOKEN`, with a pipe from the launcher as stdin.

The launcher writes `watch PGID` for each process group that it starts and `done` when it has stopped everything itself.
When the pipe ends without `done`, the launcher is gone (kill −9 included), and everything that carries the fleet's
token in its environment, or belongs to one of the groups, is killed: reward workers and other grandchildren, for which
PR_SET_PDEATHSIG does not care, included. Standard library only: it is started with `-I -S`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

TOKEN_VARIABLE = "ARGOSY_FLEET"
_SWEEP_S = 5.0


def processes_with(token: str) -> list[int]:
    """Live processes of this user that were started with the fleet's token in their environment (Linux)."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        if wanted in environment.split(b"\0"):  # a zombie's environment is empty
            found.append(int(folder.name))
    return found


def kill_group(pgid: int) -> None:
    """SIGKILL to a process group that may be gone."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it has ended
    except PermissionError as error:  # its number was taken over by another user's group
        print(f"can't kill process group {pgid}: {error}", file=sys.stderr)


def sweep(token: str, *, timeout_s: float = _SWEEP_S) -> list[int]:
    """SIGKILL everything with the token, again and again until nothing is left; what could not be killed."""
    deadline = time.monotonic() + timeout_s
    while (left := processes_with(token)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    return left


def main(token: str) -> None:
    """Wait for the launcher's end, whichever way it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        word, _, argument = line.strip().partition(" ")
        if word == "done":
            return
        if word == "watch":
            groups.add(int(argument))
        elif word == "forget":
            groups.discard(int(argument))
    for pgid in groups:
        kill_group(pgid)
    sweep(token)


if __name__ == "__main__":
    main(sys.argv[1])
