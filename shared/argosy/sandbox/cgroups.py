"""Control groups: in which folders this process may make some, and which controllers those have.

Both versions count, and both at once, as systemd's hybrid layout has them: version 2 for `cgroup.kill` and processor
time, version 1 for memory and processes. Groups are made below the service's own, so that its limits go on holding.

In version 2 a group with processes can't give controllers to groups below it. Where the service's own is delegated to
it (systemd's `Delegate=yes`, a container with its own cgroup namespace), its processes are moved into a group below,
`argosy-service`. A group that others keep house in, a login session say, is left as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

WANTED = ("memory", "pids", "cpu", "cpuacct")
SERVICE = "argosy-service"
_ROUNDS = 20
"""How often the processes of a group are asked for: those that are moved may start others meanwhile."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
_ADVICE = "start the service in a group that is its own, by `systemd-run --user --scope -p Delegate=yes …`"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which groups can be made."""

    version: int
    folder: str
    controllers: frozenset[str]
    """Those of `WANTED` that groups made there have. With none, version 2 still tells processor time, and kills."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy: of which of its groups, at which folder, with which options."""

    version: int
    root: str
    folder: str
    options: frozenset[str]


def find_places(wanted: Sequence[str] = WANTED) -> tuple[list[Place], list[str]]:
    """The places, each controller in one of them, and why others are none."""
    try:
        with open("/proc/self/mountinfo") as mounts, open("/proc/self/cgroup") as own:
            found = own_folders(read_mounts(mounts.read()), own.read(), wanted)
    except OSError as error:
        return [], [f"{error.filename}: {error.strerror}"]
    places, reasons = [], []
    for version, folder, controllers in found:
        try:
            places.append(_delegated(folder, wanted) if version == 2 else _writable(Place(1, folder, controllers)))
        except OSError as error:
            reasons.append(f"{error.filename or folder}: {error.strerror}")
    if not found:
        reasons.append("no control groups are mounted")
    if any(place.version == 2 for place in places):  # it tells processor time itself
        places = [place for place in places if place.controllers != {"cpuacct"}]
    return places, reasons


def read_mounts(mountinfo: str) -> list[Mount]:
    """The mounts of control groups in the text of /proc/self/mountinfo (proc(5))."""
    mounts = []
    for line in mountinfo.splitlines():
        first, separator, second = line.partition(" - ")
        kind, _, options = second.partition(" ")
        if separator and kind in ("cgroup", "cgroup2"):
            root, folder = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), text) for text in first.split()[3:5])
            mounts.append(
                Mount(1 + (kind == "cgroup2"), root, folder, frozenset(options.rpartition(" ")[2].split(",")))
            )
    return mounts


def own_folders(
    mounts: Sequence[Mount], memberships: str, wanted: Sequence[str]
) -> list[tuple[int, str, frozenset[str]]]:
    """Version, folder and wanted controllers of the groups that we are in; `memberships` is the text of
    /proc/self/cgroup (cgroups(7)). Groups that no mount shows are left out."""
    found = []
    for line in memberships.splitlines():
        number, names, path = line.split(":", 2)
        version = 2 if number == "0" else 1
        controllers = frozenset(names.split(",")) & frozenset(wanted)
        if version == 1 and not controllers:
            continue
        for mount in mounts:
            root = mount.root.rstrip("/")
            shown = path == root or path.startswith(f"{root}/")
            if mount.version == version and shown and (version == 2 or controllers <= mount.options):
                found.append((version, (mount.folder + path[len(root) :]).rstrip("/"), controllers))
                break
    return found


def processes(folder: str) -> Iterator[int]:
    """The processes of a group; none if it is gone."""
    try:
        yield from map(int, read(f"{folder}/cgroup.procs").split())
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def write(path: str, text: str) -> None:
    """Write to a file of a group. The OSError names it."""
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, f"write {text!r}: {error.strerror}", path) from None


def read(path: str) -> str:
    """Its content. The OSError names it."""
    with open(path) as file:
        return file.read()


def _writable(place: Place) -> Place:
    for path in (place.folder, f"{place.folder}/cgroup.procs"):
        if not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, "this user may not make groups there", path)
    return place


def _delegated(folder: str, wanted: Sequence[str]) -> Place:
    """Version 2: give groups below it what it has itself."""
    if os.path.basename(folder) == SERVICE:  # another of our processes was here before
        folder = os.path.dirname(folder)
    _writable(Place(2, folder, frozenset()))
    here = set(read(f"{folder}/cgroup.controllers").split()) & set(wanted)
    missing = here - set(read(f"{folder}/cgroup.subtree_control").split())
    if missing and os.path.exists(f"{folder}/cgroup.type") and any(processes(folder)):  # the root of all has no type
        if not _ours(folder):
            names = ", ".join(sorted(missing))
            raise OSError(
                errno.EBUSY, f"it has processes, so its controllers ({names}) can't be divided; {_ADVICE}", folder
            )
        _make_room(folder)
    if missing:
        give(folder, missing)
    return Place(2, folder, frozenset(here))


def give(folder: str, controllers: Collection[str]) -> None:
    """Let the groups below have controllers: all at once, for one that threads may have shuts out those that only
    processes may."""
    write(f"{folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))


def _ours(folder: str) -> bool:
    """Whether it was given to us with all below it: systemd marks such groups; in a cgroup namespace it is the root."""
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    with open("/proc/self/cgroup") as file:
        return any(line.rstrip("\n") in ("0::/", f"0::/{SERVICE}") for line in file)


def _make_room(folder: str) -> None:
    target = f"{folder}/{SERVICE}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(target)
    for _ in range(_ROUNDS):
        waiting = list(processes(folder))
        for pid in waiting:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                write(f"{target}/cgroup.procs", str(pid))
        if not waiting:
            return
