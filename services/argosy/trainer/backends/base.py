"""What every training backend can do. The trainer core holds counters and fencing; a backend holds tensors.

All calls come from one thread and block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from argosy.trainer.lora import AdapterForm
from argosy.trainer.optimizer import StepOutcome
from argosy.trainer.state import BackendState
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import GlobalNormalizer, LossConfig
from argosy.weightsync.freezing import Put, TensorForm

__all__ = ["Backend", "BackendState", "Gathering"]


class Backend(Protocol):
    """A model with its optimizer, on one process or many."""

    @property
    def parameter_count(self) -> int:
        """Trained parameters; tied ones once."""
        ...

    def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer
    ) -> dict[str, float]:
        """Add the batch's share of the gradient; returns its share of each metric."""
        ...

    def optim_step(self, rate: float) -> StepOutcome:
        """Clip, step, drop the gradients."""
        ...

    def zero_grad(self) -> None:
        """Drop the gradients."""
        ...

    def evaluate(
        self, batch: TrajectoryBatch, columns: Sequence[str], temperature: float, cancelled: Callable[[], bool]
    ) -> TrajectoryBatch:
        """Columns of the response tokens under the current weights: a policy's log-probs, a critic's values."""
        ...

    def offload(self) -> None:
        """Move weights and optimizer state to main memory, and give freed memory back. Nothing but `onload`,
        `start_save` and `close` may follow."""
        ...

    def onload(self) -> None:
        """Undo `offload`."""
        ...

    def weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """All weights by Hugging Face name, and the tied names: redundant → owner."""
        ...

    @property
    def adapter_form(self) -> AdapterForm | None:
        """Of the LoRA adapter. None without one, or if one rank and alpha can't tell it."""
        ...

    def adapter_weights(self) -> dict[str, Tensor]:
        """The adapter's tensors alone, as `LoraAdapter.alone` names them; only with an `adapter_form`."""
        ...

    def base_weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """As `weights`, without the adapter."""
        ...

    def state(self) -> BackendState:
        """For a checkpoint."""
        ...

    def load_state(self, state: BackendState) -> None:
        """Restore; all or nothing. Raises InvalidInputError if names or shapes don't fit this model."""
        ...

    def start_save(self, folder: Path, step: int, *, background: bool = True) -> Future[list[str]]:
        """Copy the state now and write it below `folder` in the background; the future has the files' names.

        Waits for a save that is still under way, so that there is one copy at most. Without `background` nothing is
        copied: it returns when the files are written, or couldn't be, which the future says.
        """
        ...

    def load_checkpoint(self, folder: Path) -> int:
        """Restore what a save wrote, by whatever number of ranks; all or nothing. Returns its step."""
        ...

    def close(self) -> None:
        """Let a save that is under way finish, and give back what is held outside memory."""
        ...

    def model_for_export(self) -> Any:
        """The transformers model, for `save_pretrained`."""
        ...

    def memory_metrics(self) -> dict[str, float]:
        """perf/…"""
        ...


@runtime_checkable
class Gathering(Protocol):
    """A backend whose weights are spread, and can be gathered one by one: nobody then holds all of them beside the
    copy that they go into."""

    def weight_forms(self) -> tuple[dict[str, TensorForm], dict[str, str]] | None:
        """What `weights_into` will bring, in order, and the tied names: redundant → owner. None if it can't."""
        ...

    def weights_into(self, put: Put) -> None:
        """Gather each of the weights of `weights`, tied ones once, and give it to `put` before the next. Where there
        are ranks it is a collective, and `put` is called on rank 0 only."""
        ...
