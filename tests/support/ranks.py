"""Real ranks for tests: processes of one gloo group that run a function and send back what it returns."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PRELOAD = [
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
]
"""Imported once, in the server that ranks are forked from: a rank then starts in tenths of a second."""


def run_ranks(count: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> list[Any]:
    """What `function(*arguments)` returns on each of `count` ranks, in rank order.

    The function must be at a module's top level. The first failed rank's traceback becomes an AssertionError; a rank
    that isn't done after `timeout_s` (a collective that others don't join) is killed and named.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = [], []
        for rank in range(count):
            here, there = context.Pipe(duplex=False)
            arguments_of_rank = (there, Path(folder) / "store", rank, count, timeout_s, function, arguments)
            process = context.Process(target=_run, args=arguments_of_rank, daemon=True)
            process.start()
            there.close()
            ends.append(here)
            processes.append(process)
        try:
            return [_result(rank, end, timeout_s) for rank, end in enumerate(ends)]
        finally:
            for process in processes:
                process.kill()  # each has answered, or is to end
                process.join()


def _result(rank: int, end: Connection, timeout_s: float) -> Any:
    assert end.poll(timeout_s), f"rank {rank} did not end within {timeout_s:g} s"
    try:
        succeeded, value = end.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died without a word") from None
    assert succeeded, f"rank {rank}:\n{value}"
    return value


def _run(
    end: Connection,
    store: Path,
    rank: int,
    count: int,
    timeout_s: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=timeout_s)
    )
    try:
        answer = (True, function(*arguments))
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        answer = (False, traceback.format_exc())
    dist.barrier() if answer[0] else None  # a rank that is killed while others still talk to it would fail them
    end.send(answer)
