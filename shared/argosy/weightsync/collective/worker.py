"""The program that holds the groups of a transfer. Reads commands as JSON lines, answers as JSON lines.

    {"op": "open", "host": …, "timeout_s": …}                         → {"port": …}
    {"op": "send", "path", "size_bytes", "file_id", "bucket_bytes", "backend", "device", …,
     "groups": [{"name", "size"}]}
                                                                       → {"sent": [error or "" for each group]}
    {"op": "receive", "path", …, "endpoint", "group", "rank", "size", "device",
     "spans": [[start, stop] for each tensor]}
                                                                       → {"checksums": [crc32 of each part]}
    {"op": "close"}                                                    → {}

An answer to a command that failed is {"error": "…"}. The end of stdin ends the process at once, whatever it does: a
parent that has died leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from argosy.weightsync.memory import KeptMapping

if TYPE_CHECKING:
    from argosy.weightsync.collective.joining import Joined

_PR_SET_PDEATHSIG = 1


class _Worker:
    def __init__(self) -> None:
        self._store: Any = None
        self._host = ""
        self._mapping = KeptMapping(writable=True)

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"open": self._open, "send": self._send, "receive": self._receive, "close": self._close}[command["op"]](
            command
        )

    def _open(self, command: dict[str, Any]) -> dict[str, Any]:
        from argosy.weightsync.collective.groups import serve_store

        self._host = command["host"]
        self._store = serve_store(self._host, command["timeout_s"])
        return {"port": self._store.port}

    def _send(self, command: dict[str, Any]) -> dict[str, Any]:
        """To all groups at once; one that fails or hangs holds up no other."""
        from argosy.weightsync.collective import joining
        from argosy.weightsync.collective.groups import make_lanes, send
        from argosy.weightsync.collective.receiving import device_of, leave, seconds_left

        memory = self._map(command)
        end = time.monotonic() + command["timeout_s"]
        gpu = joining.gpu_of(command["device"])
        own = joining.Joined("", command["backend"], joining.identity(gpu))

        def work(group: dict[str, Any]) -> str:
            name, size = group["name"], group["size"]
            try:
                joined = joining.meet(self._store, name, size, end)
                backend, address = self._agree(name, own, joined)
                made = make_lanes(backend, self._store, name, 0, size, address, seconds_left(end))
                send(made, memory, command["bucket_bytes"], seconds_left(end), device_of(backend, gpu))
                leave(made)
            except (RuntimeError, OSError) as error:
                return str(error) or type(error).__name__
            return ""

        groups = command["groups"]
        with ThreadPoolExecutor(len(groups)) as pool:
            return {"sent": list(pool.map(work, groups))}

    def _agree(self, name: str, own: Joined, joined: Sequence[Joined]) -> tuple[str, str]:
        """(backend, the sender's address) of a group. RuntimeError, OSError, which its receivers learn too."""
        from argosy.weightsync.collective import joining

        try:
            backend, address = joining.decide([own, *joined]), joining.reachable(self._host, joined)
        except (RuntimeError, OSError) as error:
            joining.refuse(self._store, name, str(error))
            raise
        joining.tell_backend(self._store, name, backend)
        return backend, address

    def _receive(self, command: dict[str, Any]) -> dict[str, Any]:
        from argosy.weightsync.collective.receiving import receive_into

        view = self._mapping.get(command["path"], command["size_bytes"], command["file_id"])
        return {"checksums": receive_into(view, command)}

    def _map(self, command: dict[str, Any]) -> Any:
        """The parent's buffer, [N] uint8. Writable also to send from: torch takes no read-only memory."""
        import torch

        return torch.from_numpy(self._mapping.get(command["path"], command["size_bytes"], command["file_id"]))

    def _close(self, command: dict[str, Any]) -> dict[str, Any]:
        self._store = None
        return {}


def _read_commands(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        commands.put(json.loads(line))
    os._exit(0)  # also while the main thread is stuck in a group


def main() -> None:
    """Serve commands until stdin ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    worker = _Worker()
    while True:
        command = commands.get()
        try:
            answer = worker.do(command)
        except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
