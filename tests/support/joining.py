"""Servers that join a live run by hand, and what the run's books say of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from argosy.controller.ledger.segments import read_segment, steps_in
from argosy.rpc.clients.controller import ControllerClient
from argosy.rpc.clients.rollout import RolloutClient
from argosy.types.records import Member

Result = TypeVar("Result")

WAIT_S = 120.0
"""A guard against hanging, for a machine that does much else."""


def within(condition: Callable[[], Result | None], what: str, timeout_s: float = WAIT_S) -> Result:
    """The first result that counts as true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
    return found


class Joiner:
    """`argosy serve ROLE --run FOLDER`, as a user types it."""

    def __init__(self, run_dir: Path, role: str, *options: str, program: Path | None = None) -> None:
        """`program`: A service of the test's own, which reads the run's configuration, in place of the command."""
        self.run_dir = run_dir
        self.role = role
        self.started = time.time()
        self.log = run_dir.parent / f"joiner-{role}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "argosy.cli.main", "serve", role, "--run", str(run_dir), *options]
        if program is not None:
            command = [sys.executable, str(program), "--config", str(run_dir / "services.yaml"), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def text(self) -> str:
        """What it has written."""
        return self.log.read_text()

    def member(self, state: str = "") -> Member | None:
        """Its entry as the controller's ListMembers has it, if it is in that state."""
        assert self.process.poll() is None, self.text()
        pid = str(self.process.pid)
        for member in members(self.run_dir, self.role):
            if member.capabilities.get("pid") == pid and state in ("", member.state.value):
                return member
        return None

    def wait(self, state: str) -> Member:
        """Its entry, when it is in that state."""
        return within(lambda: self.member(state), f"{self.role} is {state}:\n{self.text()}")

    def first_token_s(self, address: str) -> float:
        """Seconds from its start to its first token, give or take the pause between two looks."""

        async def look() -> int:
            client = RolloutClient(address)
            try:
                return (await client.status()).generated_token_count
            finally:
                await client.close()

        within(lambda: run(look()), f"a token:\n{self.text()}")
        return time.time() - self.started

    def end(self, timeout_s: float = 60) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """In a loop of its own."""
    return asyncio.run(work)


def members(run_dir: Path, role: str = "") -> list[Member]:
    """As the controller lists them; none before it is up."""
    try:
        address = str(json.loads((run_dir / "endpoint.json").read_text())["address"])
    except FileNotFoundError:
        return []

    async def ask() -> list[Member]:
        client = ControllerClient(address)
        try:
            return await client.list_members(role)
        finally:
            await client.close()

    return run(ask())


def trained(run_dir: Path, member: str = "", after: float = 0.0) -> list[dict[str, Any]]:
    """Rows of the ledger's committed steps: samples that were trained, of that server, sent to it after that moment."""
    folder = run_dir / "ledger"
    rows = [row for step in steps_in(folder) for row in read_segment(folder, step)] if folder.is_dir() else []
    return [
        row
        for row in rows
        if row["state"] == "trained" and member in ("", row["member"]) and (row["dispatched_at"] or 0.0) >= after
    ]
