"""An ad-hoc process group over a TCPStore, and the movement of one buffer through it, bucket by bucket.

Process groups of torch.distributed are made directly, without `init_process_group`: sender and receivers come from
different launches, and nothing global stays behind.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import TCPStore  # type: ignore[attr-defined]

IN_FLIGHT = 2
"""Pieces under way in each lane: one travels while the other is checked (or copied to and from a GPU)."""
LANES = 2
"""Groups of gloo side by side, each with a connection and a thread of its own. One alone waits half of the time for the
kernel to wake its other end; two of them bring 1.3 to 1.6 times as much on two cores, three no more. NCCL: one."""
PIECE_BYTES = 16 << 20
"""gloo: what is sent of a bucket at a time. A piece is checked when it is there, so that little is left to be checked
after the last one; smaller ones cost more waiting than that saves."""


def serve_store(host: str, timeout_s: float) -> TCPStore:
    """A store that listens on one address only, on a free port (torch by itself listens on all of them)."""
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join_store(endpoint: str, timeout_s: float) -> TCPStore:
    """The sender's store. DistNetworkError (a RuntimeError) if nobody listens there."""
    host, port = _split(endpoint)
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def _split(endpoint: str) -> tuple[str, int]:
    """An offer without a host, which no client has filled in, is of this process."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def own_address(endpoint: str, timeout_s: float) -> str:
    """The address by which this host reaches an endpoint: where the group has to listen. OSError after `timeout_s`."""
    with contextlib.closing(socket.create_connection(_split(endpoint), timeout=timeout_s)) as probe:
        return str(probe.getsockname()[0])


def make_group(backend: str, store: TCPStore, name: str, rank: int, size: int, address: str, timeout_s: float) -> Any:
    """Join the named group; waits until all its ranks have. RuntimeError after `timeout_s`."""
    timeout = timedelta(seconds=timeout_s)
    prefix = PrefixStore(name, store)
    if backend == "nccl":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return distributed.ProcessGroupNCCL(prefix, rank, size, options)
    settings: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    settings._devices = [ProcessGroupGloo.create_device(hostname=address)]
    settings._timeout = timeout
    settings._threads = IN_FLIGHT
    return ProcessGroupGloo(prefix, rank, size, settings)


def make_lanes(
    backend: str, store: TCPStore, name: str, rank: int, size: int, address: str, timeout_s: float
) -> list[Any]:
    """The groups of one transfer; raises as `make_group`."""
    count = 1 if backend == "nccl" else LANES
    end = time.monotonic() + timeout_s
    return [
        make_group(backend, store, f"{name}/{lane}", rank, size, address, max(0.1, end - time.monotonic()))
        for lane in range(count)
    ]


def buckets(size_bytes: int, bucket_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of each bucket."""
    for start in range(0, size_bytes, bucket_bytes):
        yield start, min(size_bytes, start + bucket_bytes)


def send(lanes: Sequence[Any], memory: Tensor, bucket_bytes: int, timeout_s: float, device: str) -> None:
    """Broadcast the memory [N] uint8 from rank 0 and wait until every receiver has all of it.

    `device`: "cpu" for gloo, "cuda:0" … for NCCL.
    """
    _move(lanes, memory, bucket_bytes, timeout_s, device, load=True, arrived=lambda stop: None)
    _confirm(lanes, timeout_s, device)


def receive(
    lanes: Sequence[Any],
    memory: Tensor,
    bucket_bytes: int,
    timeout_s: float,
    device: str,
    arrived: Callable[[int], None],
) -> None:
    """Fill the memory [N] uint8 from rank 0; `arrived(stop)` is called when the bytes before `stop` are there."""
    _move(lanes, memory, bucket_bytes, timeout_s, device, load=False, arrived=arrived)
    _confirm(lanes, timeout_s, device)


def _move(
    lanes: Sequence[Any],
    memory: Tensor,
    bucket_bytes: int,
    timeout_s: float,
    device: str,
    *,
    load: bool,
    arrived: Callable[[int], None],
) -> None:
    """Both sides' loop. With gloo, pieces of buckets go straight from and to the memory, by the lanes in turn."""
    step = bucket_bytes if device != "cpu" else min(bucket_bytes, PIECE_BYTES)
    most = IN_FLIGHT * len(lanes)
    rooms = [torch.empty(step, dtype=torch.uint8, device=device) for _ in range(most * (device != "cpu"))]
    options = distributed.BroadcastOptions()
    options.rootRank = 0
    under_way: deque[tuple[Any, Tensor, Tensor, int]] = deque()

    def settle() -> None:
        work, room, place, stop = under_way.popleft()
        work.wait(timedelta(seconds=timeout_s))
        if room is not place and not load:
            place.copy_(room)
        arrived(stop)

    for index, (start, stop) in enumerate(buckets(memory.numel(), step)):
        if len(under_way) == most:
            settle()
        place = memory[start:stop]
        room = rooms[index % most][: stop - start] if rooms else place
        if room is not place and load:
            room.copy_(place)
        under_way.append((lanes[index % len(lanes)].broadcast([room], options), room, place, stop))
    while under_way:
        settle()


def _confirm(lanes: Sequence[Any], timeout_s: float, device: str) -> None:
    """Wait for all ranks: a sender that left earlier would cut off what is still in its sockets."""
    tokens = [torch.zeros(1, dtype=torch.uint8, device=device) for _ in lanes]
    for work in [lane.allreduce([token]) for lane, token in zip(lanes, tokens, strict=True)]:
        work.wait(timedelta(seconds=timeout_s))
    if device != "cpu":
        torch.cuda.synchronize(device)
