"""What the launcher raises when a service process ends by itself.

ArgosyError
├── ChildDiedError   and the run ends with it
└── SetbackError     and the run goes back to its last checkpoint
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from argosy.types.errors import ArgosyError


class ChildDiedError(ArgosyError):
    """A service process ended while the run still needed it; the text ends with its last log lines."""

    def __init__(self, member_id: str, returncode: int, log_path: Path, tail: Sequence[str]) -> None:
        self.member_id = member_id
        self.returncode = returncode
        """As the operating system reports it: negative is a signal's number."""
        self.signal_name = _signal_name(returncode)
        """"SIGKILL", …; empty when the process exited by itself."""
        self.log_path = log_path
        self.tail = tuple(tail)
        lines = [f"{member_id} died: {describe_exit(returncode)}. The run can't go on without it."]
        if self.tail:
            lines += [f"Last {len(self.tail)} lines of {log_path}:", *(f"  {line}" for line in self.tail)]
        else:
            lines.append(f"It had written nothing to {log_path}.")
        super().__init__("\n".join(lines), member_id=member_id, returncode=str(returncode), log_path=str(log_path))

    def after(self, restarts: int, last: ChildDiedError) -> ChildDiedError:
        """This first death of several, told with what became of the restarts."""
        told = ChildDiedError(self.member_id, self.returncode, self.log_path, self.tail)
        times = "once" if restarts == 1 else f"{restarts} times"
        more = [f"It was started again {times}, and died again; the last time: {describe_exit(last.returncode)}."]
        if last.tail and last.returncode != self.returncode:  # why it can't come back is not what it died of at first
            more += [f"Its last {len(last.tail)} lines then:", *(f"  {line}" for line in last.tail)]
        told.args = ("\n".join([self.args[0], *more]),)
        return told


class SetbackError(ArgosyError):
    """A service that the run can't do without died, and is on its way back: the run goes on from its last checkpoint.

    `cause` is what the run ends with where it can't go on after all.
    """

    def __init__(self, member_id: str, what: str, cause: ArgosyError) -> None:
        super().__init__(f"{member_id} {what}", member_id=member_id)
        self.member_id = member_id
        self.cause = cause

    @classmethod
    def of(cls, death: ChildDiedError) -> SetbackError:
        """For a child of the launcher."""
        return cls(death.member_id, f"died: {describe_exit(death.returncode)}", death)


def describe_exit(returncode: int) -> str:
    """How a process ended, in words.

    >>> describe_exit(3)
    'exit code 3'
    >>> describe_exit(-15)
    'killed by SIGTERM'
    """
    if returncode >= 0:
        return f"exit code {returncode}"
    hint = (
        " (if nobody killed it, the kernel did, for want of memory: see dmesg)" if returncode == -signal.SIGKILL else ""
    )
    return f"killed by {_signal_name(returncode)}{hint}"


def _signal_name(returncode: int) -> str:
    if returncode >= 0:
        return ""
    try:
        return signal.Signals(-returncode).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-returncode}"
