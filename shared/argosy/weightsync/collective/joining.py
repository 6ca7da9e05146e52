"""How both ends of a group find out, over the store, how to reach each other and what to send by.

    receiver  announce: its address, the backend that its offer names, its GPU      GROUP/joined/RANK
    sender    waits for all of a group, decides, and tells                          GROUP/backend

Neither end can know alone: a sender on a GPU may have receivers without one, and NCCL refuses two ranks on one GPU. A
sender that listens on every interface learns only here by which one a receiver is reached.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

AUTO, GLOO, NCCL = "auto", "gloo", "nccl"
WILDCARDS = ("0.0.0.0", "::", "")
"""Addresses to listen on that nobody can be reached by."""
_REFUSED = "refused: "
_FIRST_LOOK_S, _LOOK_S = 0.0002, 0.01
"""Seconds between two looks, the shortest and the longest."""
_LOOKS = 32
"""Looks in the time that was waited already: they hold a transfer up by some hundredths of that, with little work."""
_DISCARD_PORT = 9


@dataclass(frozen=True, slots=True)
class Joined:
    """What an end tells of itself."""

    address: str
    """Where its group listens."""
    backend: str
    """Asked for: AUTO, GLOO or NCCL."""
    gpu: str
    """Identity of its GPU, the same in every process; "": it has none."""


def announce(store: Any, group: str, rank: int, joined: Joined) -> None:
    """Tell the sender that a receiver is there."""
    store.set(f"{group}/joined/{rank}", json.dumps(asdict(joined)))


def meet(store: Any, group: str, size: int, end: float) -> list[Joined]:
    """All receivers of a group, by rank. RuntimeError if one has not come by `end` (time.monotonic)."""
    return [Joined(**json.loads(_read(store, f"{group}/joined/{rank}", end))) for rank in range(1, size)]


def tell_backend(store: Any, group: str, backend: str) -> None:
    """Tell a group's receivers what was decided."""
    store.set(f"{group}/backend", backend)


def refuse(store: Any, group: str, why: str) -> None:
    """Tell a group's receivers that there is nothing to wait for."""
    store.set(f"{group}/backend", f"{_REFUSED}{why}")


def decided_backend(store: Any, group: str, end: float, check_wanted: Callable[[], None] = lambda: None) -> str:
    """What the sender decided; `check_wanted` raises when nobody waits for it any more.

    RuntimeError if the sender refused, or has not decided by `end` (time.monotonic).
    """
    told = _read(store, f"{group}/backend", end, check_wanted).decode()
    if told.startswith(_REFUSED):
        raise RuntimeError(told.removeprefix(_REFUSED))
    return told


def decide(ends: Sequence[Joined]) -> str:
    """NCCL where every end has a GPU of its own, else gloo; what one was told to use is used by all.

    RuntimeError if two were told to use different ones.
    """
    asked = {end.backend for end in ends} - {AUTO}
    if len(asked) > 1:
        raise RuntimeError(f"the ends of a group were told to use {' and '.join(sorted(asked))}")
    if asked:
        return asked.pop()
    gpus = {end.gpu for end in ends}
    return NCCL if "" not in gpus and len(gpus) == len(ends) else GLOO


def reachable(host: str, receivers: Sequence[Joined]) -> str:
    """The address on which a sender's group listens: `host`, or for a wildcard that of the way to its receivers."""
    bare = host.strip("[]")
    return route_to(receivers[0].address) if bare in WILDCARDS else bare


def route_to(address: str) -> str:
    """This host's address on the way to another. Sends nothing. OSError if there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        probe.connect((address, _DISCARD_PORT))
        return str(probe.getsockname()[0])


def gpu_of(device: str) -> str:
    """The GPU to send by, "cuda:0", for a role's device ("auto", "cpu", "cuda:1", "": not known); "": none."""
    import torch

    if device.startswith("cpu") or not torch.cuda.is_available():
        return ""
    index = torch.device(device).index if device.startswith("cuda") else None
    return f"cuda:{index or 0}"


def identity(gpu: str) -> str:
    """Of a GPU of `gpu_of`: the same for every process that uses it."""
    import torch

    return str(torch.cuda.get_device_properties(gpu).uuid) if gpu else ""


def _read(store: Any, key: str, end: float, check_wanted: Callable[[], None] = lambda: None) -> bytes:
    """Looks again and again: a read that waits would hold up all other threads that use the store."""
    begun = time.monotonic()
    while not store.check([key]):
        check_wanted()
        now = time.monotonic()
        if now > end:
            raise RuntimeError(f"the other end of {key!r} has not come in time")
        time.sleep(min(_LOOK_S, max(_FIRST_LOOK_S, (now - begun) / _LOOKS)))
    return bytes(store.get(key))
