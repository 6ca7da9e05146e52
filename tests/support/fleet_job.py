"""The toy job as a fleet: services and controllers that are each started by hand, over a real etcd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from argosy.controller.fence import FolderLeader, folder_leader
from support.network import Host
from support.toy import ToyJob

HANG_S = 180.0
ROLES = ("trainer", "rollout", "reward", "reference")


@dataclass
class FleetJob:
    """One run of the toy job; every process of it is a child of the test."""

    job: ToyJob
    run: str
    endpoints: Sequence[str]
    ttl_s: int = 3
    overrides: Sequence[str] = ()
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.job.folder / self.run

    @property
    def prefix(self) -> str:
        return f"/{self.run}"

    def keys(self, endpoints: Sequence[str] = ()) -> list[str]:
        words = self.job.command(self.run, *self.overrides)
        return [
            *words[words.index("train") + 1 :],
            "argosy.placement=fleet",
            f"argosy.run_id={self.run}",
            f"argosy.membership.endpoints=[{','.join(endpoints or self.endpoints)}]",
            f"argosy.membership.prefix={self.prefix}",
            f"argosy.membership.lease_ttl_s={self.ttl_s}",
            "argosy.startup_timeout_s=120",
            "trainer.val_before_train=False",
            "trainer.logger=[console,file]",
        ]

    def serve(
        self, role: str, name: str = "", *, at: str = "", on: Host | None = None, endpoints: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a service; its member id is `name`. `at`: the address to listen on; `on`: the host to run on, at its
        address; `endpoints`: by which it reaches etcd."""
        name = name or f"{role}-0"
        at = on.address if on is not None else at
        listen = ["--host", at] if at else []
        return self._start(name, ["serve", role, "--member", name, *listen, *self.keys(endpoints)], on)

    def serve_all(self, *roles: str) -> None:
        for role in roles or ROLES:
            self.serve(role)

    def control(self, name: str, *overrides: str) -> subprocess.Popen[bytes]:
        """Start a controller; `name` is what this test calls it."""
        return self._start(name, ["train", "--quiet-config", *self.keys(), *overrides])

    def output(self, name: str) -> str:
        return (self.job.folder / f"{self.run}-{name}.out").read_text()

    def _start(self, name: str, words: Sequence[str], on: Host | None = None) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with (self.job.folder / f"{self.run}-{name}.out").open("ab") as out:
            command = [sys.executable, "-m", "argosy.cli.main", *words]
            process = subprocess.Popen(
                command if on is None else on.command(command), stdout=out, stderr=out, env=environment
            )
        self.processes[name] = process
        return process

    def leader(self) -> FolderLeader | None:
        return folder_leader(self.folder)

    def steps(self) -> list[int]:
        return (
            [int(row["step"]) for row in self.job.metrics(self.run)] if (self.folder / "metrics.jsonl").exists() else []
        )

    def lives(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "ledger" / "lives.jsonl").read_text().splitlines()]

    def until(self, wanted: Callable[[], Any], what: str, *alive: str) -> None:
        """Wait for a condition; the processes named must live meanwhile."""
        deadline = time.monotonic() + HANG_S
        while not wanted():
            for name in alive:
                assert self.processes[name].poll() is None, f"{name} ended:\n{self.output(name)}"
            if time.monotonic() > deadline:
                told = "\n".join(f"--- {name}\n{self.output(name)[-2000:]}" for name in self.processes)
                raise AssertionError(f"not within {HANG_S} s: {what}\n{told}")
            time.sleep(0.02)

    def end(self, name: str, timeout_s: float = HANG_S) -> tuple[int, str]:
        """Wait for a process to end by itself: exit code and what it has shown."""
        try:
            code = self.processes[name].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} still runs:\n{self.output(name)}") from None
        return code, self.output(name)

    def close(self) -> None:
        """Kill what is left, with what that has started."""
        for process in self.processes.values():
            if process.poll() is None:
                children = psutil.Process(process.pid).children(recursive=True)
                for one in (*children, psutil.Process(process.pid)):
                    one.kill()
                process.wait(20)
