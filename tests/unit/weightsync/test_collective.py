"""The collective transport's ends: how they agree, and what is left of a worker when something goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.types.errors import UnavailableError
from argosy.weightsync.collective import groups, joining
from argosy.weightsync.collective.groups import own_address
from argosy.weightsync.collective.joining import Joined, decide
from argosy.weightsync.collective.process import Worker
from argosy.weightsync.transports.collective import CollectiveTransfer

MakeWorker = Callable[[str], Worker]


def end(gpu: str, backend: str = "auto", address: str = "127.0.0.1") -> Joined:
    return Joined(address, backend, gpu)


@pytest.mark.parametrize(
    ("ends", "backend"),
    [
        ([end("gpu-a"), end("gpu-b")], "nccl"),
        ([end("gpu-a"), end("")], "gloo"),
        ([end(""), end("gpu-a")], "gloo"),
        ([end("gpu-a"), end("gpu-a")], "gloo"),  # NCCL refuses two ranks on one GPU
        ([end("gpu-a"), end("gpu-b"), end("")], "gloo"),
        ([end("gpu-a"), end("gpu-b", "gloo")], "gloo"),
        ([end("", "nccl"), end("", "nccl")], "nccl"),  # told so: NCCL itself will say what is wrong
    ],
)
def test_both_ends_decide_the_backend(ends: list[Joined], backend: str) -> None:
    assert decide(ends) == backend


def test_ends_that_were_told_different_backends_are_refused() -> None:
    with pytest.raises(RuntimeError, match="gloo and nccl"):
        decide([end("gpu-a", "nccl"), end("gpu-b", "gloo")])


class Store:
    """A store's two calls that are used, in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


def test_ends_meet_over_the_store_or_say_that_nobody_came() -> None:
    store, soon = Store(), time.monotonic() + 0.05
    joined = [end("a"), end("b")]
    joining.announce(store, "g", 1, joined[0])
    with pytest.raises(RuntimeError, match="g/joined/2"):
        joining.meet(store, "g", 3, soon)
    joining.announce(store, "g", 2, joined[1])
    assert joining.meet(store, "g", 3, soon) == joined
    joining.refuse(store, "g", "no way there")
    with pytest.raises(RuntimeError, match=r"^no way there"):
        joining.decided_backend(store, "g", soon)
    joining.tell_backend(store, "g", "gloo")
    assert joining.decided_backend(store, "g", soon) == "gloo"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", ""])
def test_a_sender_that_listens_everywhere_takes_part_under_an_address_that_leads_there(host: str) -> None:
    """Its receivers would be told to connect to 0.0.0.0, which is themselves."""
    assert joining.reachable(host, [end("", address="127.0.0.1")]) == "127.0.0.1"


def test_a_sender_on_one_address_keeps_it() -> None:
    assert joining.reachable("[fd00::7]", [end("")]) == "fd00::7"
    assert joining.reachable("10.0.0.7", [end("")]) == "10.0.0.7"


class Lane:
    """A group that counts what it moves."""

    def __init__(self, group: Any, moved: Counter[int], number: int) -> None:
        self._group, self._moved, self._number = group, moved, number

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        self._moved[self._number] += tensors[0].numel()
        return self._group.broadcast(tensors, options)

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        return self._group.allreduce(tensors)


@pytest.mark.parametrize(("bucket", "step"), [(1 << 20, 1000), (300, 300)])
def test_pieces_go_by_all_lanes_and_are_told_in_order(monkeypatch: pytest.MonkeyPatch, bucket: int, step: int) -> None:
    monkeypatch.setattr(groups, "PIECE_BYTES", 1000)
    size, told, moved = 10_500, list[int](), Counter[int]()
    sent = (torch.arange(size) % 251).to(torch.uint8)
    taken = torch.zeros_like(sent)
    master = groups.serve_store("127.0.0.1", 60)

    def take_part(rank: int) -> None:
        store = groups.join_store(f"127.0.0.1:{master.port}", 60)
        made = groups.make_lanes("gloo", store, "g", rank, 2, "127.0.0.1", 60)
        if rank == 0:
            groups.send([Lane(one, moved, k) for k, one in enumerate(made)], sent, bucket, 60, "cpu")
        else:
            groups.receive(made, taken, bucket, 60, "cpu", told.append)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take_part, range(2)))
    assert torch.equal(taken, sent)
    assert told == [*range(step, size, step), size]
    assert moved.keys() == set(range(groups.LANES))
    assert max(moved.values()) - min(moved.values()) <= step


@pytest.fixture
def deaf() -> Iterator[str]:
    """An endpoint whose queue is full: connecting to it hangs."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(address)
        yield f"127.0.0.1:{address[1]}"


def test_looking_for_the_own_address_takes_no_longer_than_is_left(deaf: str) -> None:
    begun = time.monotonic()
    with pytest.raises(OSError, match="timed out"):
        own_address(deaf, 0.2)
    assert time.monotonic() - begun < 10  # a hang guard: the kernel tries for two minutes


@pytest.fixture
def make_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorker]:
    """Workers that run a shell script in place of the program."""
    made: list[Worker] = []

    def make(script: str) -> Worker:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            made.append(Worker())
        return made[-1]

    yield make
    for worker in made:
        worker.kill()
        worker.reap()


@pytest.mark.parametrize("answer", ['{"sent": [', "[]", "warning: hello"])
async def test_a_worker_whose_answer_is_none_is_killed(make_worker: MakeWorker, answer: str) -> None:
    worker = make_worker(f"read line; echo '{answer}'; exec sleep 600")
    with pytest.raises(UnavailableError, match="ended with code -9"):
        await worker.call({"op": "send"}, 30)
    assert not worker.alive


@pytest.mark.parametrize("answers", [False, True])
async def test_a_caller_that_is_cancelled_while_it_closes_leaves_no_worker(
    make_worker: MakeWorker, answers: bool
) -> None:
    """While it waits for the last words, or for the worker to say that it is ready for the next transfer."""
    first = """read line; echo '{"sent": [""]}';""" if answers else ""
    worker = make_worker(f"{first} exec sleep 600")
    transfer = CollectiveTransfer(worker, (), asyncio.create_task(worker.call({"op": "send"}, 30)))
    closing = asyncio.create_task(transfer.close())
    await asyncio.sleep(0.3)
    assert worker.alive
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert closing.cancelled()
    assert not worker.alive


async def test_a_worker_is_waited_for_beside_the_event_loop(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker("exec sleep 600")
    reap, turns = worker.reap, 0

    def slow() -> int | None:
        time.sleep(0.2)  # a process that takes its memory apart
        return reap()

    monkeypatch.setattr(worker, "reap", slow)
    ending = asyncio.create_task(worker.end())
    while not ending.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 3
    assert not worker.alive
