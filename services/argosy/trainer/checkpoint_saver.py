"""Saving while training goes on: a consistent copy is taken at once, and written in a thread of its own.

Or without a copy, while training waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from argosy.trainer import checkpoint
from argosy.trainer.checkpoint_storage import ShardCopy, copy_of
from argosy.trainer.state import BackendState

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class CheckpointSaver:
    """One rank's part of saving; every rank of a trainer has one and calls it for the same saves in the same order.

    The copy lies in main memory until it is written: as much as this rank's share of weights and optimizer state, 12
    bytes a trained parameter with AdamW in float32 (4 weight, 8 moments). There is never more than one: a save waits
    for the one before it. Reading for the copy is all that the computing thread is held up for.

    Args:
        group: Of all ranks, with a CPU backend, and used for nothing else (its collectives run in the writing thread,
            beside those of training). None: one process.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self._group = group
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._last: Future[list[str]] | None = None

    def start(self, folder: Path, step: int, state: BackendState, *, background: bool = True) -> Future[list[str]]:
        """Copy `state`; returns the save, whose result is all ranks' files (relative names; complete and synced).

        May be called from any one thread at a time. A failure of the write, on whatever rank, is the future's.

        Args:
            background: False: write `state` itself, and return only when that has ended.
        """
        if self._last is not None:
            self._last.exception()  # waits; whoever asked for that save is told of its failure
        whole = checkpoint.TrainerCheckpoint(step, copied(state) if background else state)
        self._last = self._thread.submit(checkpoint.save, folder, whole, self._group)
        if not background:
            self._last.exception()
        return self._last

    def close(self) -> None:
        """Let a save that is under way finish."""
        self._thread.shutdown(wait=True)


def copied(state: BackendState) -> BackendState:
    """A copy in main memory that later training steps don't touch."""
    return BackendState(
        model=_copied(state.model),
        optimizer=_copied(state.optimizer),
        rng=_copied(state.rng),
        counters=dict(state.counters),
    )


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        name: ShardCopy(name, tensor) if isinstance(tensor, DTensor) else copy_of(tensor)
        for name, tensor in tensors.items()
    }
