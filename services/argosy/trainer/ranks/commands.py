"""What the ranks of a trainer are told, and how a command and its answer become a message.

Every rank does the same commands in the same order, since they meet in collectives. Rank 0 does them by calling its own
backend; ranks 1, 2, … by `COMMANDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from argosy.trainer.backends.base import Backend, BackendState, Gathering
from argosy.trainer.ranks.framing import Frame
from argosy.trainer.ranks.records import from_plain, to_plain
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import GlobalNormalizer, LossConfig


class RankBackend(Backend, Protocol):
    """One rank's part of a backend: every rank calls the same methods with the same arguments, in the same order.

    What differs from a `Backend` that is alone:

    - `forward_backward` returns this rank's shares of the metrics: over the ranks they add up.
    - `evaluate` returns this rank's rows only; `cancelled` counts on rank 0 only.
    - `weights`, `adapter_weights`, `base_weights`, `state` and `model_for_export` hold everything on rank 0, and
      nothing elsewhere; `load_state` is given everything on rank 0, and an empty state elsewhere.
    - A call that is refused is refused on every rank with the same words, before any collective.
    """

    def check_state(self, state: BackendState) -> None:
        """On rank 0, before `load_state`: refuse a state that doesn't fit. Raises InvalidInputError."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank reports of a command that it has done."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON."""
    batch: TrajectoryBatch | None = None


Arguments = Mapping[str, Any]
Command = Callable[[RankBackend, Arguments, TrajectoryBatch | None], Answer]


def _forward_backward(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    loss = from_plain(LossConfig, arguments["loss"])
    normalizer = from_plain(GlobalNormalizer, arguments["normalizer"])
    return Answer(backend.forward_backward(_given(batch), loss, normalizer))


def _optim_step(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.optim_step(arguments["rate"])
    return Answer()


def _zero_grad(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.zero_grad()
    return Answer()


def _evaluate(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    columns, temperature = arguments["columns"], arguments["temperature"]
    return Answer(batch=backend.evaluate(_given(batch), columns, temperature, lambda: False))


def _offload(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.offload()
    return Answer()


def _onload(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.onload()
    return Answer()


def _weights(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.weights()
    return Answer()


def _weights_into(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    assert isinstance(backend, Gathering)
    backend.weights_into(lambda name, tensor: None)  # is called on rank 0 only
    return Answer()


def _adapter_weights(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.adapter_weights()
    return Answer()


def _base_weights(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.base_weights()
    return Answer()


def _state(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.state()
    return Answer()


def _load_state(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.load_state(BackendState({}, {}, {}, {}))
    return Answer()


def _model_for_export(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.model_for_export()
    return Answer()


def _memory_metrics(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    return Answer(backend.memory_metrics())


def _load_checkpoint(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    return Answer({"step": backend.load_checkpoint(Path(arguments["folder"]))})


def _start_save(backend: RankBackend, arguments: Arguments, batch: TrajectoryBatch | None) -> Answer:
    backend.start_save(Path(arguments["folder"]), arguments["step"], background=arguments["background"])
    return Answer()


COMMANDS: dict[str, Command] = {
    "forward_backward": _forward_backward,
    "optim_step": _optim_step,
    "zero_grad": _zero_grad,
    "evaluate": _evaluate,
    "offload": _offload,
    "onload": _onload,
    "weights": _weights,
    "weights_into": _weights_into,
    "adapter_weights": _adapter_weights,
    "base_weights": _base_weights,
    "state": _state,
    "load_state": _load_state,
    "model_for_export": _model_for_export,
    "memory_metrics": _memory_metrics,
    "start_save": _start_save,
    "load_checkpoint": _load_checkpoint,
}
"""Name → what ranks 1, 2, … do."""


def command_frame(number: int, name: str, arguments: Arguments, batch: TrajectoryBatch | None) -> Frame:
    """A command as rank 0 sends it. Records among the arguments become plain values."""
    header = {"number": number, "command": name, "arguments": to_plain(arguments)}
    return Frame(header, b"" if batch is None else batch.to_ipc())


def batch_of(frame: Frame) -> TrajectoryBatch | None:
    """The batch that a frame carries."""
    return TrajectoryBatch.from_ipc(frame.body) if frame.body else None


def sum_shares(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of all ranks from each one's shares; a rank without a metric has no share in it."""
    totals: dict[str, float] = {}
    for share in shares:
        for name, value in share.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def most(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The largest value of each metric over the ranks."""
    names = dict.fromkeys(name for found in metrics for name in found)
    return {name: max(found[name] for found in metrics if name in found) for name in names}


def merge_by_id(batch: TrajectoryBatch, parts: Sequence[TrajectoryBatch], columns: Sequence[str]) -> TrajectoryBatch:
    """The batch's ids with the ranks' columns, each row found by its sample id (case B20). KeyError if one is lost."""
    kept = TrajectoryBatch(batch.table.select(["sample_id", "prompt_ids", "response_ids", "response_mask"]))
    for name in columns:
        rows = {
            sample: values for part in parts for sample, values in zip(part.sample_ids, part.ragged(name), strict=True)
        }
        kept = kept.with_rows(name, rows)
    return kept


def _given(batch: TrajectoryBatch | None) -> TrajectoryBatch:
    if batch is None:
        raise ValueError("this command needs a batch, but its message carries none")
    return batch
