"""The first program of the server's process: `python -m argosy.rollout.engines.sglang.launch PARENT_PID ARGUMENTS…`.

It asks the kernel to kill it when the service dies, and becomes SGLang's server, which keeps that (as execve does). A
function that runs between fork and exec could do the same, but is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> NoReturn:
    """Bind this process to its parent's life, and become the server."""
    parent_id, *arguments = argv
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent_id):  # it died before that call
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-m", "sglang.launch_server", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
