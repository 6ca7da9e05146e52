"""Failures on demand, so that tests of a fleet don't have to wait for real ones (case D6)."""

from __future__ import annotations

import os
import signal


class Failure:
    """What goes wrong after a number of finished samples.

        kill    the process is killed, as by the kernel when memory runs out
        freeze  the process is stopped (SIGSTOP): connections stay open and nothing answers
        fail    the engine reports that it can't go on, and its service ends with an error
        hang    samples are taken in and never finished
        error   every further sample ends as FAILED

    Args:
        name: One of these, or "none".
        after: Finished samples before it.
    """

    def __init__(self, name: str, after: int) -> None:
        self._name = name
        self._after = after

    def due(self, name: str, finished_count: int) -> bool:
        """Whether it is this failure and its time has come."""
        return name == self._name and finished_count >= self._after

    def strike(self, finished_count: int) -> None:
        """Do what concerns the whole process, if it is due."""
        if self.due("kill", finished_count):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.due("freeze", finished_count):
            os.kill(os.getpid(), signal.SIGSTOP)
