"""Case E12: what fails on one rank ends all of them soon, and the first error is the one that is shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from argosy.modeling.loading import ModelSource
from argosy.trainer.computing import Computing
from argosy.trainer.options import TrainerOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.ranks.backend import RankedBackend
from argosy.trainer.ranks.group import END_WITHIN_S
from argosy.types.errors import ArgosyError, InternalError, InvalidInputError, StorageError, UnavailableError
from support.rank_program import HANG_S, LET_GO, PROGRAM, make
from support.training import grouped_batch

pytestmark = pytest.mark.xdist_group("ranks")

GLOO_TIMEOUT_S = 10.0
SLACK_S = 3.0
"""For a machine that does other things meanwhile."""


def start(fault: str = "", world: int = 2, timeout_s: float = GLOO_TIMEOUT_S) -> RankedBackend:
    options = TrainerOptions(
        ModelSource("none", device="cpu"),
        tokenizer_path=fault,
        parallel=ParallelOptions(world),
        rank_timeout_s=timeout_s,
        threads=1,
    )
    return RankedBackend(options, make_backend=make, program=PROGRAM)  # type: ignore[arg-type]


@contextlib.contextmanager
def ranks(fault: str = "", **settings: float) -> Iterator[RankedBackend]:
    backend = start(fault, **settings)  # type: ignore[arg-type]
    try:
        yield backend
    finally:
        backend.close()


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


CALLS: dict[str, Callable[[RankedBackend], object]] = {
    "optim_step": lambda backend: backend.optim_step(0.5),
    "start_save": lambda backend: backend.start_save(Path("x"), 1),
    "evaluate": lambda backend: backend.evaluate(grouped_batch(), ["advantages"], 1.0, lambda: False),
}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("0 evaluate raise", InternalError, "rank 0 failed in evaluate: ZeroDivisionError: this rank's own trouble"),
        ("0 start_save disk", StorageError, "rank 0 failed in start_save: StorageError: no space left"),
        ("1 optim_step raise", InternalError, "rank 1 failed in optim_step: ZeroDivisionError: this rank's own"),
        ("1 optim_step kill", InternalError, "rank 1 failed in optim_step: process .* was killed by SIGKILL"),
        (
            "1 evaluate babble",
            InternalError,
            "rank 1 failed in evaluate: InternalError: a message between ranks",
        ),
        ("1 evaluate exit", InternalError, "(?s)rank 1 failed in evaluate: process .* exited with code 3.*last words"),
    ],
)
def test_e12_one_rank_fails_and_all_end_with_its_error(
    fault: str, kind: type[ArgosyError], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ranks(fault) as backend:
        pids = backend.pids
        began = time.monotonic()
        with caplog.at_level(logging.ERROR), pytest.raises(kind, match=words) as caught:
            CALLS[fault.split()[1]](backend)
        assert time.monotonic() - began < END_WITHIN_S + SLACK_S < GLOO_TIMEOUT_S
        assert caught.value.metadata["rank"] == fault.split()[0]
        assert backend.failure.result() is caught.value
        assert len(caplog.records) == 1, "the first error, and not the others' broken connections"
        with pytest.raises(UnavailableError, match="ranks have ended: trainer rank"):
            backend.optim_step(0.5)
        backend.zero_grad()  # what the core does after any failure: nothing is left to drop
    assert not any(map(is_running, pids))


def test_e12_rank_0_fails_at_the_start() -> None:
    """As a logger that can't start: the other rank already waits for it."""
    with pytest.raises(InternalError, match="rank 0 failed in start: ZeroDivisionError") as caught:
        start("0 start raise")
    assert "this rank's own trouble" in str(caught.value)
    assert "support/rank_program.py" in str(caught.value), "with the end of its traceback"


def test_a_rank_that_hangs_is_named_after_the_timeout() -> None:
    with ranks("1 optim_step hang", timeout_s=2.0) as backend:
        began = time.monotonic()
        with pytest.raises(ArgosyError, match="rank 0 failed in optim_step") as caught:
            backend.optim_step(0.5)
        assert caught.value.metadata["silent_ranks"] == "1"
        assert "rank 1 is at (innermost first)" in str(caught.value)
        assert "rank_program.py" in str(caught.value).partition("rank 1 is at")[2]
        last = str(caught.value).splitlines()[-1]
        assert last.startswith("rank 0 waited in vain: no word from rank 1, "), "the cause, not gloo's timeout, is last"
        assert time.monotonic() - began < 2.0 + END_WITHIN_S + SLACK_S


async def test_a_caller_is_answered_even_if_rank_0_hangs() -> None:
    """Rank 1 dies while rank 0 computes and won't come back: the caller, the process and its end must not wait."""
    backend = start("all optim_step hang")
    computing = Computing()
    computing.watch(backend)
    ended = threading.Event()

    def step() -> None:
        try:
            backend.optim_step(0.5)
        finally:
            ended.set()

    call = asyncio.ensure_future(computing.run(step))
    failed = asyncio.ensure_future(computing.wait_failed())
    await asyncio.sleep(0.2)
    began = time.monotonic()
    os.kill(backend.pids[0], signal.SIGKILL)
    with pytest.raises(InternalError, match=r"trainer rank 1 failed in optim_step: process .* was killed by SIGKILL"):
        await call
    assert await failed is backend.failure.result()
    computing.close()
    assert time.monotonic() - began < END_WITHIN_S + SLACK_S < HANG_S
    assert not ended.is_set(), "nobody has waited for rank 0"
    LET_GO.set()
    assert ended.wait(SLACK_S), "it comes back into a group that is closed, and goes no further"
    LET_GO.clear()


def test_ranks_work_together_until_one_dies() -> None:
    batch = grouped_batch()
    with ranks("all optim_step refuse", world=3) as backend:
        for _ in range(2):  # an error that all ranks share is an ordinary one
            with pytest.raises(InvalidInputError, match=r"^a bad request$") as caught:
                backend.optim_step(0.5)
            assert caught.value.metadata == {"field": "x"}
        assert not backend.failure.done()

        assert backend.memory_metrics() == {"ranks": 3.0, "rank": 2.0}, "the largest of each"

        answer = backend.evaluate(batch, ["advantages"], 1.0, lambda: False)  # case B20: matched by id
        assert answer.sample_ids == batch.sample_ids
        assert answer.ragged("advantages").values.tolist() == batch.ragged("advantages").values.tolist()

        os.kill(backend.pids[1], signal.SIGKILL)  # between two calls
        assert "rank 2" in (told := str(backend.failure.result(timeout=END_WITHIN_S)))
        assert "killed by SIGKILL" in told


def test_ranks_die_with_rank_0_and_outlive_the_thread_that_started_them(tmp_path: Path) -> None:
    """kill −9 of rank 0: the kernel ends the others (PDEATHSIG, which counts threads and not processes)."""
    script = tmp_path / "rank0.py"
    tests = str(Path(__file__).parents[3])
    script.write_text(
        f"import sys, threading\n"
        f"sys.path.insert(0, {tests!r})\n"
        "from unit.trainer.ranks.test_ending import start\n"
        "made = []\n"
        "thread = threading.Thread(target=lambda: made.append(start()))\n"
        "thread.start(); thread.join()\n"
        "made[0].optim_step(0.5)\n"
        "print(made[0].pids[0], flush=True)\n"
        "threading.Event().wait()\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_running(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    end = time.monotonic() + END_WITHIN_S
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(pid)


def test_e12_a_watch_that_fails_itself_is_told_and_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in the watching thread must not leave the caller waiting for an answer that nobody reads."""
    with ranks("1 optim_step raise") as backend:

        def broken(group: object) -> None:
            raise LookupError("a defect")

        monkeypatch.setattr(type(backend._group), "_decide", broken)
        started = time.monotonic()
        with pytest.raises(InternalError, match="the watch over the trainer's ranks failed: LookupError"):
            backend.optim_step(0.5)
        while any(is_running(pid) for pid in backend.pids):
            assert time.monotonic() - started < END_WITHIN_S + SLACK_S
            time.sleep(0.05)
