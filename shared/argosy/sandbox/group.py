"""The control groups of a sandbox: one for each cell, made before the program starts and removed after it.

A sandbox's groups lie in a folder of its own in each hierarchy, whose lock it holds as long as it lives. A folder that
nobody holds is what a killed process left: the next sandbox of the same service sweeps it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Sequence

from argosy.sandbox.cgroups import Place, find_places, give, processes, read, write
from argosy.sandbox.options import SandboxError, SandboxOptions

_PREFIX = "argosy-sandbox-"
_OWN_BYTES = 48 * 1024**2
"""Of pid 1 while it copies files, of page tables and of kernel stacks: no memory of the program's."""
_END_S = 10.0
_LOOK_S = 0.001
_TRIES = 10
_EVENTS = {1: "memory.oom_control", 2: "memory.events"}
_IN_USE = {1: ("total_rss", "total_mapped_file"), 2: ("anon", "file_mapped")}
_SAID = {"memory": "memory", "pids": "processes", "cpu": "processor shares"}


class Group:
    """One cell's group: a folder in each place."""

    def __init__(self, folders: Sequence[tuple[Place, str]]) -> None:
        """The folders need not be there yet: see `make`."""
        self._folders = folders
        self._of = {name: (place.version, folder) for place, folder in folders for name in place.controllers}
        unified = next((folder for place, folder in folders if place.version == 2), None)
        self._kill = f"{unified}/cgroup.kill" if unified else None
        if unified:
            self._of["cpuacct"] = (2, unified)

    def make(self, options: SandboxOptions) -> None:
        """Make it, with its limits: the last resort, a little above what `watch` allows."""
        for place, folder in self._folders:
            os.mkdir(folder)
            if "pids" in place.controllers:
                write(f"{folder}/pids.max", str(options.process_count + 1))  # and pid 1
            if "memory" in place.controllers:
                most_bytes = options.memory_bytes + options.tmp_bytes + 2 * options.output_bytes + _OWN_BYTES
                name, swap = ("limit_in_bytes", "memsw.limit_in_bytes") if place.version == 1 else ("max", "swap.max")
                write(f"{folder}/memory.{name}", str(most_bytes))
                if os.path.exists(f"{folder}/memory.{swap}"):  # a kernel may count no swap
                    write(f"{folder}/memory.{swap}", str(most_bytes if place.version == 1 else 0))

    def add(self, pid: int) -> None:
        """Have a process in it, and all that it will start."""
        for _, folder in self._folders:
            write(f"{folder}/cgroup.procs", str(pid))

    @property
    def bounds(self) -> list[str]:
        """What it does, in words. For one that is made."""
        known = [said for name, said in _SAID.items() if name in self._of]
        known += ["processor time"] if "cpuacct" in self._of else []
        return known + (["kill"] if self._kill is not None and os.path.exists(self._kill) else [])

    def cpu_s(self) -> float | None:
        """Processor time of all that ever were in it, whoever waited for them; None if that isn't known."""
        if "cpuacct" not in self._of:
            return None
        version, folder = self._of["cpuacct"]
        if version == 1:
            return int(read(f"{folder}/cpuacct.usage")) / 1e9
        return _values(read(f"{folder}/cpu.stat"))["usage_usec"] / 1e6

    def memory_bytes(self) -> int | None:
        """What its processes have together, shared pages once, unmapped files not at all; None if that isn't known."""
        if "memory" not in self._of:
            return None
        version, folder = self._of["memory"]
        values = _values(read(f"{folder}/memory.stat"))
        return sum(values[name] for name in _IN_USE[version])

    def out_of_memory(self) -> bool:
        """Whether the kernel ended one of its processes because the group had no memory left."""
        if "memory" not in self._of:
            return False
        version, folder = self._of["memory"]
        return _values(read(f"{folder}/{_EVENTS[version]}")).get("oom_kill", 0) > 0

    def kill(self) -> None:
        """Kill all that is in it, where one word does it (Linux 5.14)."""
        if self._kill is not None:
            with contextlib.suppress(FileNotFoundError):
                write(self._kill, "1")

    def remove(self) -> None:
        """Kill what is left in it, and take it away. May be called again. Raises SandboxError if something stays."""
        self.kill()
        end = time.monotonic() + _END_S
        for _, folder in self._folders:
            while not _gone(folder):
                if time.monotonic() > end:
                    raise SandboxError(f"processes {list(processes(folder))} of {folder} can't be killed")
                for pid in processes(folder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(_LOOK_S)


class Groups:
    """A sandbox's groups. `close` it when done."""

    def __init__(self, options: SandboxOptions) -> None:
        """Find out what works here; raises nothing: `bounds` and `reasons` say it."""
        self._options = options
        self._name = f"{_PREFIX}{secrets.token_hex(4)}"
        self._locks: dict[Place, int] = {}
        self._count = 0
        self.bounds: list[str] = []
        """What the groups do, in words; none if they do nothing."""
        places, self.reasons = find_places()
        """Why they don't do more, as far as that has a reason."""
        for place in places:
            try:
                _sweep(place)
                self._claim(place)
            except (OSError, SandboxError) as error:
                self.reasons.append(str(error))
        if self._locks:
            self.bounds = self._try()

    def make(self) -> Group | None:
        """The next cell's; None where there are none. Raises OSError."""
        if not self._locks:
            return None
        self._count += 1
        group = Group([(place, f"{place.folder}/{self._name}/{self._count}") for place in self._locks])
        try:
            group.make(self._options)
        except OSError:
            group.remove()
            raise
        return group

    def close(self) -> None:
        """Take them away, with what is still in them. May be called again."""
        while self._locks:
            place, lock = self._locks.popitem()
            try:
                _clear(f"{place.folder}/{self._name}")
            finally:
                os.close(lock)

    def _claim(self, place: Place) -> None:
        folder = f"{place.folder}/{self._name}"
        for _ in range(_TRIES):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            lock = _lock(folder)
            if lock is not None and os.path.isdir(folder):
                break
            if lock is not None:  # a sweep that came between took it for an old one
                os.close(lock)
        else:
            raise OSError(errno.EBUSY, "others take away what is made there", folder)
        self._locks[place] = lock
        if place.version == 2 and place.controllers:
            give(folder, place.controllers)
        if (
            "cpu" in place.controllers and self._options.background
        ):  # a group's share hides what its processes asked for
            if os.path.exists(f"{folder}/cpu.idle"):  # Linux 5.15
                write(f"{folder}/cpu.idle", "1")
            else:
                name, least = ("cpu.shares", 2) if place.version == 1 else ("cpu.weight", 1)
                write(f"{folder}/{name}", str(least))

    def _try(self) -> list[str]:
        try:
            group = self.make()
            assert group is not None
            bounds = group.bounds
            group.remove()
        except (OSError, SandboxError) as error:
            self.reasons.append(str(error))
            self.close()
            return []
        return bounds


def sweep() -> None:
    """Take away what killed processes left, where this process may make groups. Raises OSError, SandboxError."""
    for place in find_places()[0]:
        _sweep(place)


def _sweep(place: Place) -> None:
    for name in os.listdir(place.folder):
        if name.startswith(_PREFIX):
            folder = f"{place.folder}/{name}"
            lock = _lock(folder)
            if lock is not None:
                try:
                    _clear(folder)
                finally:
                    os.close(lock)


def _lock(folder: str) -> int | None:
    """Its lock, until that is closed; None if somebody else holds it, or it is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # another sweep was faster
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _clear(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if os.path.isdir(f"{folder}/{name}"):
                Group([(Place(_version(folder), folder, frozenset()), f"{folder}/{name}")]).remove()
    _gone(folder)


def _version(folder: str) -> int:
    return 2 if os.path.exists(f"{folder}/cgroup.controllers") else 1


def _gone(folder: str) -> bool:
    """Remove a group; False if something is in it still."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _values(text: str) -> dict[str, int]:
    """A flat keyed file."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in text.splitlines())}
