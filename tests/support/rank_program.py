"""Ranks without a model, for tests of how they are told, watched and ended: `python -m support.rank_program …`.

Each call meets the other ranks in a collective. What a rank shall do wrong is in the options: "RANK STEP HOW" as
tokenizer_path.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from argosy.trainer.optimizer import StepOutcome
from argosy.trainer.options import TrainerOptions
from argosy.trainer.ranks.rendezvous import Rendezvous, join, leave
from argosy.trainer.ranks.worker import main
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError, StorageError

HANG_S = 20.0
LET_GO = threading.Event()
"""Ends what hangs in this process, and not only in another rank's: see `_fail`."""
PROGRAM = ("-m", "support.rank_program")


class ModelessBackend:
    """The methods that the tests call."""

    parameter_count = 1

    def __init__(self, options: TrainerOptions, rendezvous: Rendezvous) -> None:
        self._rank = rendezvous.rank
        self._fault = (options.tokenizer_path or "").split()
        join(rendezvous, torch.device("cpu"))
        try:
            self._meet("start")
        except BaseException:
            leave()
            raise

    def _meet(self, step: str) -> float:
        """Fail if that is what this rank shall do here; else meet the others."""
        if self._fault[1:2] == [step] and self._fault[0] in (str(self._rank), "all"):
            _fail(self._fault[2])
        total = torch.ones(())
        distributed.all_reduce(total)
        return float(total)

    def optim_step(self, rate: float) -> StepOutcome:
        return StepOutcome(self._meet("optim_step"), rate, skipped=False)

    def memory_metrics(self) -> dict[str, float]:
        return {"ranks": self._meet("memory_metrics"), "rank": float(self._rank)}

    def evaluate(
        self, batch: TrajectoryBatch, columns: Sequence[str], temperature: float, cancelled: Callable[[], bool]
    ) -> TrajectoryBatch:
        """Rows in turn: each rank has its own, in reverse order."""
        self._meet("evaluate")
        rows = list(range(self._rank, len(batch), distributed.get_world_size()))
        return batch.select(rows[::-1])

    def start_save(self, folder: Path, step: int, *, background: bool = True) -> Future[list[str]]:
        self._meet("start_save")
        saved: Future[list[str]] = Future()
        saved.set_result([])
        return saved

    def close(self) -> None:
        leave()


def _fail(how: str) -> None:
    if how == "raise":
        raise ZeroDivisionError("this rank's own trouble")
    if how == "refuse":
        raise InvalidInputError("a bad request", field="x")
    if how == "disk":
        raise StorageError("no space left")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        print("last words")
        sys.stdout.flush()
        os._exit(3)
    if how == "babble":
        os.write(int(sys.argv[2]), b"\xff" * 64)
    if how == "hang":
        LET_GO.wait(HANG_S)
        # Never into the collective: a thread that outlives its test would take part in the group of another test's
        # trainer in the same process, whose ranks would then wait for each other in different collectives for ever.
        raise TimeoutError("hung")


def make(options: Any, rendezvous: Rendezvous) -> ModelessBackend:
    return ModelessBackend(options, rendezvous)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], make))
