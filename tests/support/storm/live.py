"""A run of the toy job that is under way: who its processes are, and how far it has come."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from argosy.controller.ledger import steps_in
from support.etcd_cluster import EtcdCluster
from support.joining import members as members_of
from support.toy import ToyJob

HANG_S = 180.0
"""A hang guard, no bound of a recovery: those are told."""


def until(condition: Callable[[], bool], what: str, timeout_s: float = HANG_S, pause_s: float = 0.02) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(pause_s)
    return time.monotonic() - began


class LiveRun:
    """One command of `argosy train`, started again whenever a fault has ended it.

    Args:
        job: The toy job.
        name: Of the run folder.
        overrides: The command's; the same at each start.
        etcd: What it registers with.
        disk: The file system of its folder, if that can be filled.
    """

    def __init__(
        self, job: ToyJob, name: str, overrides: tuple[str, ...], etcd: EtcdCluster, disk: Path | None = None
    ) -> None:
        self._job = job
        self._name = name
        self._overrides = (*overrides, f"argosy.membership.endpoints=[{','.join(etcd.endpoints)}]")
        self.etcd = etcd
        self.disk = disk
        self.folder: Path = job.folder / name
        self.logs = job.folder
        """Where logs go: not onto the disk that is filled."""
        self.starts = 0
        self._log = job.folder / f"{Path(name).name}.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        self._said_before = self._log.stat().st_size if self._log.exists() else 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with self._log.open("ab") as sink:
            return subprocess.Popen(
                self._job.command(self._name, *self._overrides), stdout=sink, stderr=sink, env=environment
            )

    def start_again(self) -> None:
        """After its command has ended."""
        self.process.wait(HANG_S)
        self.process = self._start()

    @property
    def said(self) -> str:
        """The last that all starts have written."""
        return self._log.read_text(errors="replace")[-4000:]

    @property
    def said_lately(self) -> str:
        """What its latest start has written."""
        return self._log.read_bytes()[self._said_before :].decode(errors="replace")

    def newest_step(self) -> float:
        """When the newest step was committed, as the file system says; 0 if none was."""
        times = [0.0]
        for path in (self.folder / "ledger").glob("step_*.gz"):
            try:
                times.append(path.stat().st_mtime)
            except FileNotFoundError:  # the run goes back, and sets it aside
                continue
        return max(times)

    @property
    def step_count(self) -> int:
        """Steps of the surviving lineage."""
        return len(steps_in(self.folder / "ledger"))

    def until_step(self, after: float | None = None, timeout_s: float = HANG_S) -> float:
        """Seconds from `after` (time.time's clock; None: now) to the first step that was committed later."""
        begin = time.time() if after is None else after

        def is_there() -> bool:
            assert self.process.poll() is None, f"the run has ended with {self.process.returncode}:\n{self.said}"
            return self.newest_step() > begin

        until(is_there, f"a step after {begin:.1f}; the run said:\n{self.said}", timeout_s)
        return self.newest_step() - begin

    def members(self, role: str) -> dict[str, psutil.Process]:
        """Live service processes of a role, by member id."""
        found = {}
        for process in processes_of(self.folder):
            words = process.cmdline()
            if "--member" in words and words[words.index("--member") + 1].startswith(f"{role}-"):
                found[words[words.index("--member") + 1]] = process
        return found

    def listed(self, role: str) -> set[str]:
        """Members of a role, as the controller has them."""
        return {member.member_id for member in members_of(self.folder, role)}

    def stop(self) -> int:
        """Ctrl-C: it saves and ends. The exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(HANG_S)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Live processes whose command line names a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found
