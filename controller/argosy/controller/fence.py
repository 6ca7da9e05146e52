"""Who may write to a run folder: the leader with the newest term, where several controllers can reach it (case F8).

A run whose processes one launcher starts holds the folder's lock (launch/lock.py) from its first moment to its last.
Standbys can't wait for that: a leader that is stopped, or on a machine that is cut off, would keep it. Here the newest
term is written down in the folder itself, and each write that counts is made in two parts: the long one into a file or
folder with a name of its own, and the short one, a rename, under a lock and only if the term is still the newest.

    leader.json      {"run_id": …, "term": 7, "candidate": "controller-head-3f", "since": …}
    .leader.lock     held for the moment of a rename
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from argosy.types.errors import FencedError, StorageError, storage_error
from argosy.types.records import Leader

log = logging.getLogger(__name__)

LEADER_FILE = "leader.json"
LOCK_FILE = ".leader.lock"
PATIENCE_S = 5.0
"""For a lock that is held for milliseconds. Who holds it longer was stopped in the middle, or its disk was."""
_POLL_S = 0.01


class Fence(Protocol):
    """Stands before a run folder."""

    @property
    def tag(self) -> str:
        """Part of the names of what is not complete yet, so that two leaders never write to the same file."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Around the short part of a write. Raises FencedError when another term has come. Not to be nested."""
        ...


class _Open:
    tag = ""

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()


OPEN: Fence = _Open()
"""Of a folder that is this process's alone."""


@dataclass(frozen=True, slots=True)
class FolderLeader:
    """Who has led in a folder last."""

    leader: Leader
    candidate: str


def folder_leader(run_dir: Path) -> FolderLeader | None:
    """As `leader.json` has it; None where nobody ever did. Raises StorageError if it can't be read."""
    path = run_dir / LEADER_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return FolderLeader(Leader(str(found["run_id"]), int(found["term"])), str(found["candidate"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"can't read who leads in {run_dir}: {path} is damaged ({error})") from error


class TermFence:
    """The fence of one leader.

    Args:
        run_dir: The run folder, on whatever file system all controllers see.
        leader: Run and term.
        candidate: This controller's member id: no two have the same.
    """

    def __init__(self, run_dir: Path, leader: Leader, candidate: str) -> None:
        self._run_dir = run_dir
        self._leader = leader
        self._candidate = candidate
        self.tag = f".term{leader.term}"

    def take(self) -> None:
        """Shut out all earlier terms. What they have begun and not completed is removed, and can't be completed.

        Raises:
            FencedError: the folder knows this term or a higher one: etcd has lost its data, or another was faster.
            StorageError: the folder can't be written.
        """
        try:
            self._run_dir.mkdir(parents=True, exist_ok=True)
            with self._locked(breaks=True):
                known = folder_leader(self._run_dir)
                if known is not None and known.leader.term >= self._leader.term:
                    raise self._fenced(known)
                self._write_down()
                removed = self._take_away_unfinished()
        except OSError as error:
            raise storage_error(error, self._run_dir) from error
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around the short part of a write. Raises FencedError when another term has come; StorageError."""
        with self._locked(breaks=False):
            known = folder_leader(self._run_dir)
            if known is None or known.leader.term != self._leader.term or known.candidate != self._candidate:
                raise self._fenced(known)
            yield

    def _write_down(self) -> None:
        facts = {
            "run_id": self._leader.run_id,
            "term": self._leader.term,
            "candidate": self._candidate,
            "since": round(time.time(), 3),
        }
        new = self._run_dir / f"{LEADER_FILE}{self.tag}.partial"
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._run_dir / LEADER_FILE)

    def _take_away_unfinished(self) -> list[Path]:
        """A checkpoint that an earlier leader has not completed: whoever wakes up later finds nothing to rename."""
        removed = []
        for path in self._run_dir.glob(".global_step_*.partial"):
            aside = path.with_name(f"{path.name}{self.tag}.removed")
            path.rename(aside)
            removed.append(aside)
        return removed

    def _fenced(self, known: FolderLeader | None) -> FencedError:
        term = self._leader.term
        if known is None:
            return FencedError(
                f"term {term} may not write to {self._run_dir}: its {LEADER_FILE} is gone", term=str(term)
            )
        return FencedError(
            f"term {term} of run {self._leader.run_id!r} may not write to {self._run_dir}: {known.candidate} leads run "
            f"{known.leader.run_id!r} there with term {known.leader.term}; this controller must stop",
            run_id=self._leader.run_id,
            term=str(term),
            current_term=str(known.leader.term),
        )

    @contextmanager
    def _locked(self, *, breaks: bool) -> Iterator[None]:
        """Hold the lock; `breaks`: when it isn't to be had in time, put a new one in its place."""
        path, deadline, broken = self._run_dir / LOCK_FILE, time.monotonic() + PATIENCE_S, False
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if _locks(descriptor, path):
                    yield
                    return
            finally:
                os.close(descriptor)  # which unlocks
            if time.monotonic() > deadline:
                if not breaks or broken:
                    raise StorageError(f"{path} was not free within {PATIENCE_S:g} s: another controller is writing")
                log.warning("%s is held by a controller that stands still: going on without it", path)
                fresh = path.with_name(f"{LOCK_FILE}{self.tag}")
                fresh.touch()
                fresh.replace(path)
                broken, deadline = True, time.monotonic() + PATIENCE_S
            time.sleep(_POLL_S)


def _locks(descriptor: int, path: Path) -> bool:
    """Whether the lock is ours now; a file that was replaced meanwhile is not the lock any more."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
