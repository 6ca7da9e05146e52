"""The process group in which the ranks of one trainer compute: gloo, and NCCL for GPUs. Loopback only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import HashStore, ProcessGroup, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _set_pg_timeout

from argosy.types.errors import ConfigError, StateError

LOOPBACK = "127.0.0.1"
START_S = 120.0
"""For one exchange of a start, where no rank has anything else to do than to answer."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Who one rank is, and where it meets the others."""

    rank: int = 0
    world_size: int = 1
    port: int = 0
    """Of rank 0's TCPStore on loopback; unused when the rank is alone."""
    timeout_s: float = 600.0
    """Of one collective."""

    def store(self) -> Store:
        """This rank's end of the meeting place."""
        if self.world_size == 1:
            return HashStore()
        limit = timedelta(seconds=self.timeout_s)
        return TCPStore(LOOPBACK, self.port, self.world_size, is_master=False, timeout=limit)


def open_store(world_size: int, timeout_s: float) -> TCPStore:
    """Rank 0's meeting place, on a free port of loopback. It must live as long as the group."""
    limit = timedelta(seconds=timeout_s)
    return TCPStore(LOOPBACK, 0, world_size, is_master=True, timeout=limit, wait_for_workers=False)


def rank_device(name: str, rank: int, world_size: int) -> torch.device:
    """Where one rank computes: "auto" and "cuda" are the GPU of the rank's number, if there are GPUs.

    Raises ConfigError if the ranks are more than the GPUs.
    """
    kind = torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)
    if kind.type != "cuda":
        return kind
    first = kind.index or 0
    count = torch.cuda.device_count()
    if first + world_size > count:
        raise ConfigError(
            f"{world_size} trainer ranks from cuda:{first} on need {first + world_size} GPUs, but {count} are here; "
            "lower trainer.n_gpus_per_node, or set argosy.trainer.device=cpu"
        )
    return torch.device("cuda", first + rank)


def join(rendezvous: Rendezvous, device: torch.device) -> None:
    """Make the default process group; blocks until all ranks are there, `START_S` at most.

    Raises StateError if this process is in one already: a process holds one multi-rank trainer.
    """
    if distributed.is_initialized():
        raise StateError(
            "this process is a rank of another trainer already; with argosy.placement=inprocess only one of trainer "
            "and critic can have ranks: use argosy.placement=local"
        )
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo looks the host's name up
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=rendezvous.store(),
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        timeout=timedelta(seconds=min(START_S, rendezvous.timeout_s)),
    )
    set_patience(rendezvous.timeout_s)


def set_patience(timeout_s: float, group: ProcessGroup | None = None) -> None:
    """How long one collective of a group may take (None: of the default one). PyTorch gives new groups half an hour."""
    _set_pg_timeout(timedelta(seconds=timeout_s), group)


@contextmanager
def in_step(timeout_s: float) -> Iterator[None]:
    """Wait, as long as any collective may (`timeout_s`), until all ranks are here; inside, at most `START_S` for each.

    For what ranks do at once after one of them has worked alone, such as reading the weights: ranks that don't come
    together there are told apart from slow ones soon.
    """
    if distributed.get_world_size() > 1:
        distributed.all_reduce(torch.zeros(1))
    set_patience(min(START_S, timeout_s))
    yield
    set_patience(timeout_s)


def leave() -> None:
    """End the process group. Repeating it does no harm."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
