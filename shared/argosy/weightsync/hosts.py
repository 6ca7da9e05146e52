"""Which processes can share memory: those of one boot of one machine that see each other's process ids."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


@functools.cache
def host_id() -> str:
    """Equal in two processes exactly if one can open the other's memory files; "" where that can't be known.

    Boot id (not the host name, which two machines may share), process-id namespace (containers of one machine don't see
    each other's files below /proc) and user (nobody else may open them).
    """
    try:
        boot, namespace = _BOOT_ID.read_text().strip(), os.readlink(_PID_NAMESPACE)
    except OSError:  # not Linux
        return ""
    return f"{boot}/{namespace}/{os.getuid()}"
