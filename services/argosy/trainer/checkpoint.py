"""A trainer's checkpoint: no pickle, bit for bit, saved and loaded by any number of ranks (ADR 0013).

    model.safetensors       master weights (with LoRA: the adapter); tied names once
    optimizer.safetensors   the optimizer's state of each parameter
    rng.safetensors         random states, by rank
    trainer.json            training step, counters, format, and which piece of which tensor is in which file

Several ranks write a file each (`model-00001-of-00002.safetensors`). The controller's manifest, written after these, is
what makes a checkpoint exist.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from argosy.trainer.state import BackendState
from argosy.types.errors import ArgosyError, CorruptDataError, InternalError, InvalidInputError, StorageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import Metadata

FORMAT = 2
STATE_FILE = "trainer.json"
FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", STATE_FILE)
"""Of one process."""

_MODEL, _OPTIMIZER, _RNG = "model", "optimizer", "rng"


@dataclass(frozen=True, slots=True, eq=False)
class TrainerCheckpoint:
    """What is saved and restored."""

    step: int
    """Training steps done. The learning-rate schedule is a function of it."""
    state: BackendState
    """Tensors are whole, or this rank's DTensors."""


def save(folder: Path, checkpoint: TrainerCheckpoint, group: ProcessGroup | None = None) -> list[str]:
    """Write all files below `folder` (made if absent, leftovers replaced) and sync them; returns their names.

    Args:
        folder: The same on all ranks.
        checkpoint: This rank's; tensors that aren't DTensors are the same on all ranks.
        group: All ranks, each of which calls this; its backend must work on CPU tensors. None: one process.

    Raises:
        StorageError: the disk is full, or the place can't be written; on all ranks if on one.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save as save_state

    from argosy.trainer.checkpoint_storage import SafetensorsWriter, SavePlannerOfCopies

    rank = 0 if group is None else distributed.get_rank(group)
    state = checkpoint.state
    tensors = _named(_MODEL, state.model) | _named(_OPTIMIZER, state.optimizer) | _named(f"{_RNG}/{rank}", state.rng)
    record = {"format": FORMAT, "step": checkpoint.step, "counters": dict(state.counters)}
    writer = SafetensorsWriter(folder, STATE_FILE, record)
    try:
        _quiet()
        save_state(
            tensors,
            storage_writer=writer,
            planner=SavePlannerOfCopies(),
            process_group=group,
            no_dist=group is None,
        )
    except CheckpointException as error:
        raise first_failure(error, f"the checkpoint {str(folder)!r} can't be saved") from error
    return _shared(writer.files, group)


def load(
    folder: Path, sharded: Mapping[str, Tensor] | None = None, group: ProcessGroup | None = None
) -> TrainerCheckpoint:
    """Read and check all parts.

    Args:
        folder: The same on all ranks.
        sharded: This rank's DTensor parameters by name. They, and optimizer state of their shape, are read into new
            DTensors laid out like them; all else is read whole. How many ranks saved doesn't matter.
        group: All ranks. None: one process.

    Raises:
        InvalidInputError: there is no such folder, its format is of another release, or a sharded parameter has
            another shape.
        CorruptDataError: names every missing part (case H5), or the damaged one (case E3); on all ranks if on one.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import load as load_state

    from argosy.trainer.checkpoint_storage import SafetensorsReader

    record = _read_record(folder)
    rank = 0 if group is None else distributed.get_rank(group)
    tensors = _empty_like(record.metadata, sharded or {}, rank)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    reader = SafetensorsReader(folder, record.metadata)
    try:
        _quiet()
        load_state(tensors, storage_reader=reader, planner=planner, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        raise first_failure(error, f"the checkpoint {str(folder)!r} can't be loaded") from error
    rng = _part(tensors, f"{_RNG}/{rank}") or _part(tensors, f"{_RNG}/0")
    return TrainerCheckpoint(
        record.step, BackendState(_part(tensors, _MODEL), _part(tensors, _OPTIMIZER), rng, record.counters)
    )


def first_failure(error: CheckpointException, what: str) -> ArgosyError:
    """The error of the lowest rank that failed, as it was if it is one of ours."""
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    if isinstance(cause, ArgosyError):
        return cause
    if isinstance(cause, OSError):
        return StorageError(f"{what} (rank {rank}): {cause}")
    return InternalError(f"{what} (rank {rank}): {cause!r}")


@dataclass(frozen=True, slots=True, eq=False)
class _Record:
    step: int
    counters: dict[str, int]
    metadata: Metadata = field(repr=False)


def _read_record(folder: Path) -> _Record:
    from argosy.trainer.checkpoint_storage import metadata_of

    if not folder.is_dir():
        raise InvalidInputError(f"there is no checkpoint folder {str(folder)!r}")
    path = folder / STATE_FILE
    if not path.is_file():
        raise _missing(folder, FILES)
    try:
        record = json.loads(path.read_text())
        version = record["format"]
        if version != FORMAT:
            raise InvalidInputError(f"{str(path)!r} has format {version}; this release reads format {FORMAT}")
        found = _Record(int(record["step"]), dict(record["counters"]), metadata_of(record))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{str(path)!r} is damaged: {error!r}", file=path.name) from error
    files = sorted(set(found.metadata.storage_data.values()))
    if any(not (folder / name).is_file() for name in files):
        raise _missing(folder, files)
    return found


def _missing(folder: Path, names: Iterable[str]) -> CorruptDataError:
    missing = [name for name in names if not (folder / name).is_file()]
    return CorruptDataError(f"the checkpoint {str(folder)!r} lacks {', '.join(missing)}", missing=",".join(missing))


def _empty_like(metadata: Metadata, sharded: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Where to read to: new tensors, so that a load that fails half-way has changed nothing."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    tensors = {}
    for name, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        part, _, rest = name.partition("/")
        if part == _RNG and rest.partition("/")[0] not in (str(rank), "0"):
            continue
        parameter = sharded.get(rest if part == _MODEL else rest.partition("/")[2])
        shape, dtype = entry.size, entry.properties.dtype
        if parameter is not None and part == _MODEL and parameter.shape != shape:
            raise InvalidInputError(
                f"the checkpoint's model is of another model: {rest} has shape {tuple(shape)}, this model's has "
                f"{tuple(parameter.shape)}",
                part=_MODEL,
            )
        if parameter is not None and part != _RNG and parameter.shape == shape:
            tensors[name] = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        else:
            tensors[name] = torch.empty(shape, dtype=dtype)
    return tensors


def _named(part: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{part}/")}


def _shared(files: list[str], group: ProcessGroup | None) -> list[str]:
    """The coordinator's list, on all ranks."""
    if group is None:
        return files
    held: list[Any] = [files]
    distributed.broadcast_object_list(held, src=distributed.get_global_rank(group, 0), group=group)
    return list(held[0])


def _quiet() -> None:
    """DCP warns of every save without a process group, which is how one process is meant to save."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
