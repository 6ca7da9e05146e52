"""gRPC and fork: a process made by fork after gRPC began to run can't use it (case F2).

Its threads are gone in the child, so that a call hangs and ignores its deadline. Our rule: pools of processes use
`process_context()`, and whoever opens a channel or a server, or calls through one, in a forked child is told so at once
by a StateError instead of hanging. `subprocess` (fork and exec at once) is not affected. gRPC's own fork support
(GRPC_ENABLE_FORK_SUPPORT) stays off, as it is by default: it does not cover the asyncio API.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os

from argosy.types.errors import StateError

_owner_pid: int | None = None
"""The process in which gRPC began to run."""


def process_context() -> multiprocessing.context.ForkServerContext:
    """The start method for every pool of processes of ours: never fork, since gRPC may be running."""
    return multiprocessing.get_context("forkserver")


def claim_process() -> None:
    """Note that gRPC runs in this process. StateError if it began in a parent, from which this one was forked."""
    global _owner_pid
    if _owner_pid is None:
        _owner_pid = os.getpid()
    elif _owner_pid != os.getpid():
        raise StateError(
            f"process {os.getpid()} was forked from process {_owner_pid} after gRPC had begun to run there, so calls "
            "would hang: use argosy.rpc.fork.process_context() (forkserver) or spawn for the pool"
        )
