"""Run a command so that the kernel kills it when its parent dies: `python child.py PARENT_PID -- COMMAND …`.

A program of its own, not a `preexec_fn`: code between fork and exec in a process full of threads (gRPC's among them)
can deadlock, and a plain fork+exec can't. It replaces itself by the command, so nothing stays in between. Started with
`-I -S` (no site-packages): it must import the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Bind this process's life to the parent's, then become the command."""
    parent, command = int(argv[1]), argv[3:]
    if sys.platform == "linux":
        # Survives the exec. It fires when the *thread* that started us ends, which is the launcher's event loop.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit("the launcher has died during start-up")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # an ignored signal would stay ignored through exec (nohup)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"can't run {command[0]}: {error}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv)
