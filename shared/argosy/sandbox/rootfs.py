"""The file system that programs see: a small read-only tree of what an interpreter or compiler needs.

Nothing of the host is in it but the system's programs and libraries, the interpreter and (if wanted) its packages. No
/home, /root, /etc, /run or /var, and no sockets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from argosy.sandbox import kernel

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_FILES = {
    "etc/passwd": "nobody:x:65534:65534:nobody:/tmp:/bin/sh\n",
    "etc/group": "nogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_OWN = "/tmp"
"""Each cell has its own, so that nothing of the host can be seen there."""
_BASES = ("/mnt", "/media", "/srv", "/opt", "/tmp")


def visible_paths(extra: Sequence[str]) -> list[str]:
    """The system's paths and `extra`, without those that lie below another."""
    wanted = sorted({os.path.abspath(path) for path in (*SYSTEM_PATHS, *extra) if os.path.lexists(path)})
    return [path for path in wanted if not any(_below(path, other) for other in wanted if other != path)]


def is_visible(path: str, paths: Sequence[str]) -> bool:
    """Whether a file lies in one of the paths, links followed."""
    real = os.path.realpath(path)
    return any(_below(real, other) for other in map(os.path.realpath, paths))


def inside(path: str) -> str:
    """Where a visible path of the host is in the tree: what lies below /tmp, an environment say, is below /host/tmp."""
    return f"/host{path}" if _below(path, _OWN) else path


def enter(paths: Sequence[str]) -> None:
    """Make the tree the root of this mount namespace. Raises OSError that names the step.

    /proc stays the host's in it, /tmp is empty: each cell covers both with its own.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    base = next(base for base in _BASES if os.path.isdir(base) and not any(_below(path, base) for path in paths))
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    for path in paths:
        attributes = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
        _bind(path, base + inside(path), attributes)
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            _bind(f"/dev/{name}", f"{base}/dev/{name}", kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NOEXEC)
    for name, target in {**_LINKS, "shm": "/tmp"}.items():
        os.symlink(target, f"{base}/dev/{name}")
    for name, text in _FILES.items():
        os.makedirs(os.path.dirname(f"{base}/{name}"), exist_ok=True)
        with open(f"{base}/{name}", "x") as file:
            file.write(text)
    os.makedirs(f"{base}/tmp", exist_ok=True)
    os.makedirs(f"{base}/proc")
    kernel.mount("/proc", f"{base}/proc", None, kernel.MS_BIND | kernel.MS_REC)
    kernel.pivot_root(base)
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, flags)


def _bind(path: str, target: str, attributes: int) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        with open(target, "x"):
            pass
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.set_mount_attributes(target, attributes)


def _below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")
