"""The lowest priority there is: what a process gets of a processor is what nobody else wants.

No user needs a right for it, and an ordinary one can't take it back. It holds against processes of the same scheduling
group: the same session where the kernel groups by sessions (autogroup), else the same control group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

_AUTOGROUP = "/proc/self/autogroup"
_TRIES = 20
_NAP_S = 0.03


def give_way() -> None:
    """From now on, for this process and those that it starts."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def give_way_to_all() -> None:
    """`give_way`, in a new session to which the kernel gives the least weight, so that it holds against other sessions
    too, if not as promptly. For a process that leads no process group."""
    os.setsid()
    give_way()
    with contextlib.suppress(FileNotFoundError):  # no autogroups in this kernel
        _weigh_least()


def _weigh_least() -> None:
    for _ in range(_TRIES):
        try:
            with open(_AUTOGROUP, "w") as file:
                file.write("19")
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
        time.sleep(_NAP_S)  # the kernel lets ordinary users do it ten times a second, all of them together
