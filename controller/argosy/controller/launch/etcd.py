"""Starts the run's own etcd as a supervised child, with its data in the run folder.

One that dies later is started again as it was: members keep their leases over that, or register again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

from argosy.controller.launch.logs import TAIL_LINES
from argosy.controller.launch.process import ChildProcess, ChildSpec
from argosy.controller.launch.supervisor import Supervisor
from argosy.membership import server
from argosy.types.errors import DeadlineError, UnavailableError, storage_error

NAME = "etcd"
"""What it is called among the children."""
_TRIES = 5
_LOOK_LINES = 200
_POLL_S = 0.05


async def start_etcd(supervisor: Supervisor, binary: str | None, data_dir: Path, *, timeout_s: float) -> str:
    """Start etcd on free loopback ports and return its endpoint once it answers.

    A port that another program takes between our look and etcd's bind ends that etcd: we then try other ports.
    Raises UnavailableError when etcd is not installed or does not start, StorageError when its disk is full,
    DeadlineError when it takes too long.
    """
    found = await asyncio.to_thread(server.find_binary, binary)
    deadline = time.monotonic() + timeout_s
    tail: list[str] = []
    for _ in range(_TRIES):
        name = f"argosy-{secrets.token_hex(4)}"
        ports = server.free_ports()
        argv = server.command(found, name=name, data_dir=data_dir, ports=ports)
        child = await supervisor.start(ChildSpec(NAME, argv, is_awaited=True), expendable=True)
        if await _answers(child, ports.endpoint, name, deadline):
            supervisor.expect(child)
            return ports.endpoint
        tail = child.tail(_LOOK_LINES)
        await supervisor.forget(child)
        if not any("address already in use" in line for line in tail):
            break
    if full := next((line for line in tail if "no space left" in line.lower()), None):
        raise storage_error(OSError(full.strip()), data_dir)
    said = [line for line in tail if line.startswith("{")]  # its log; the stack of a panic tells a user nothing
    shown = "\n".join(f"  {line}" for line in (said or tail)[-TAIL_LINES:])
    raise UnavailableError(
        f"etcd ({found.path}) did not start with its data in {data_dir}. If that folder is damaged, remove it: "
        f"checkpoints are not in it. Its last lines:\n{shown}"
    )


async def _answers(child: ChildProcess, endpoint: str, name: str, deadline: float) -> bool:
    while child.returncode is None:
        if await asyncio.to_thread(server.is_ours, endpoint, name):
            return True
        if time.monotonic() > deadline:
            raise DeadlineError(f"etcd did not answer at {endpoint} in time; see {child.log_path}")
        await asyncio.sleep(_POLL_S)
    return False
