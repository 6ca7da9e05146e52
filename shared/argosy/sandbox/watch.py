"""What all processes of a cell use together, read from its /proc: limits of one process say nothing about the sum."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from argosy.sandbox.group import Group

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SHARED_BYTES = 12 * 1024**2
"""What each process has of the interpreter's pages without using memory of its own."""
_SHARE = b"Pss:"


@dataclass(frozen=True, slots=True)
class Usage:
    """A moment's sums."""

    cpu_s: float
    memory_bytes: int
    """A page that several have counts for each: see `Watch.memory_bytes`."""
    waited_s: float
    """Since the look before, what a busy machine may have cost: time ready to run, but waiting for a processor, of us,
    of pid 1, and of that process of the program which waited longest. They may have to happen one after another."""
    running: bool
    """Whether the program has a process that hasn't ended."""
    runnable: bool = False
    """Whether one of its threads runs or waits for a processor."""


class Watch:
    """Looks at one cell: through its own /proc, or, where it has none, at pid 1's descendants in ours."""

    def __init__(
        self, first_pid: int, proc: int | None, group: Group | None = None, *, children_signals: bool = False
    ) -> None:
        """`children_signals`: the program may ignore SIGCHLD, so that the kernel forgets the processor time of its
        children, unless it has a control group. Then waiting counts as its own time while two of its processes want to
        run: they wait for each other.
        """
        self._folder = "/proc" if proc is None else f"/proc/self/fd/{proc}"
        self._first = first_pid if proc is None else 1
        self._whole = proc is not None
        self._group = group
        self._forgets = children_signals and (group is None or group.cpu_s() is None)
        self._delays_ns: dict[int, int] = {}
        self._own_ns = 0

    def usage(self) -> Usage:
        """Sums over the processes that are there now; those that ended count by their processor time."""
        cpu_ticks, pages, running, runnable, ready = 0, 0, False, False, 0
        delays_ns: dict[int, int] = {}
        for pid in self._pids():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it ended meanwhile
                fields = self._read(pid, "stat").rpartition(b")")[2].split()
                own, of_children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
                cpu_ticks += of_children if pid == self._first else own + of_children
                if pid != self._first:
                    running |= fields[0] not in (b"Z", b"X")
                    ready += fields[0] == b"R"
                    runnable = runnable or self._runnable(pid, fields)
                    pages += max(0, int(fields[21]) - _SHARED_BYTES // _PAGE_BYTES)
                delays_ns[pid] = int(self._read(pid, "schedstat").split()[1])
        waited_s = self._waited_s(delays_ns, own_fault=self._forgets and ready > 1)
        return Usage(self._cpu_s(cpu_ticks), pages * _PAGE_BYTES, waited_s, running, runnable)

    def memory_bytes(self) -> int:
        """What they have together; a page that several have counts once. Takes longer than a look.

        Where neither a control group nor the kernel tells us (it wants CAP_SYS_PTRACE, which a service that isn't root
        lacks), a process counts by all its pages.
        """
        of_group = self._group.memory_bytes() if self._group is not None else None
        if of_group is not None:
            return of_group
        total = 0
        for pid in self._pids():
            if pid == self._first:
                continue
            with contextlib.suppress(OSError, IndexError, ValueError):  # it ended meanwhile
                pages = int(self._read(pid, "stat").rpartition(b")")[2].split()[21])
                try:
                    lines = self._read(pid, "smaps_rollup").splitlines()
                    total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith(_SHARE))
                except (OSError, StopIteration):
                    total += max(0, pages * _PAGE_BYTES - _SHARED_BYTES)
        return total

    def _cpu_s(self, ticks: int) -> float:
        of_group = self._group.cpu_s() if self._group is not None else None
        return ticks / _TICKS_PER_S if of_group is None else of_group

    def _waited_s(self, delays_ns: dict[int, int], *, own_fault: bool) -> float:
        with open("/proc/thread-self/schedstat", "rb") as file:
            own_ns = int(file.read().split()[1])
        since = {pid: delay - self._delays_ns.get(pid, 0) for pid, delay in delays_ns.items()}
        waited_ns = own_ns - self._own_ns + since.pop(self._first, 0)
        if not own_fault:
            waited_ns += max(since.values(), default=0)
        self._delays_ns, self._own_ns = delays_ns, own_ns
        return waited_ns / 1e9

    def _runnable(self, pid: int, fields: list[bytes]) -> bool:
        if fields[0] == b"R" or int(fields[17]) == 1:
            return fields[0] == b"R"
        for thread in os.listdir(f"{self._folder}/{pid}/task"):
            with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
                if self._read(pid, f"task/{thread}/stat").rpartition(b")")[2].split()[0] == b"R":
                    return True
        return False

    def _pids(self) -> Iterator[int]:
        with contextlib.suppress(OSError):  # the cell is gone
            found = [int(name) for name in os.listdir(self._folder) if name.isdecimal()]
            yield from found if self._whole else self._descendants(found)

    def _descendants(self, pids: list[int]) -> Iterator[int]:
        children: dict[int, list[int]] = {}
        for pid in pids:
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int(self._read(pid, "stat").rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(pid)
        waiting = [self._first]
        while waiting:
            pid = waiting.pop()
            yield pid
            waiting += children.pop(pid, [])

    def _read(self, pid: int, name: str) -> bytes:
        with open(f"{self._folder}/{pid}/{name}", "rb", buffering=0) as file:
            return file.read(4096)
