"""A trainer's checkpoint: four files, no pickle, bit for bit in float32.

    model.safetensors       master weights; tied names once
    optimizer.safetensors   AdamW's moments and step counts
    rng.safetensors         random states
    trainer.json            training step, counters, format

The controller's manifest, written after these, is what makes a checkpoint exist.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from argosy.trainer.backends.base import BackendState
from argosy.trainer.files import write_whole
from argosy.types.errors import CorruptDataError, InvalidInputError

FORMAT = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
RNG_FILE = "rng.safetensors"
STATE_FILE = "trainer.json"
FILES = (MODEL_FILE, OPTIMIZER_FILE, RNG_FILE, STATE_FILE)


@dataclass(frozen=True, slots=True, eq=False)
class TrainerCheckpoint:
    """What is saved and restored."""

    step: int
    """Training steps done. The learning-rate schedule is a function of it."""
    state: BackendState


def save(folder: Path, checkpoint: TrainerCheckpoint) -> list[str]:
    """Write all files below `folder` (made if absent, leftovers replaced) and sync them; returns their names."""
    from safetensors.torch import save_file

    def write_tensors(name: str, tensors: Mapping[str, Tensor]) -> None:
        # A tensor may be a view of a larger storage or not contiguous, which the format refuses.
        plain = {key: value.contiguous().cpu() for key, value in tensors.items()}
        write_whole(folder / name, lambda path: save_file(plain, path))

    folder.mkdir(parents=True, exist_ok=True)
    state = checkpoint.state
    write_tensors(MODEL_FILE, state.model)
    write_tensors(OPTIMIZER_FILE, state.optimizer)
    write_tensors(RNG_FILE, state.rng)
    record = {"format": FORMAT, "step": checkpoint.step, "has_moments": bool(state.optimizer)}
    text = json.dumps(record | {"counters": dict(state.counters)}, indent=1)
    write_whole(folder / STATE_FILE, lambda path: _write_text(path, text))
    return list(FILES)


def load(folder: Path) -> TrainerCheckpoint:
    """Read and check all parts.

    Raises:
        InvalidInputError: there is no such folder, or its format is of a later release.
        CorruptDataError: names every missing part (case H5), or the damaged one (case E3).
    """
    if not folder.is_dir():
        raise InvalidInputError(f"there is no checkpoint folder {str(folder)!r}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise CorruptDataError(f"the checkpoint {str(folder)!r} lacks {', '.join(missing)}", missing=",".join(missing))
    record = _read_record(folder / STATE_FILE)
    optimizer = _read_tensors(folder / OPTIMIZER_FILE)
    if record["has_moments"] and not optimizer:
        raise CorruptDataError(f"{str(folder / OPTIMIZER_FILE)!r} is empty, but the optimizer had made steps")
    return TrainerCheckpoint(
        step=record["step"],
        state=BackendState(
            model=_read_tensors(folder / MODEL_FILE),
            optimizer=optimizer,
            rng=_read_tensors(folder / RNG_FILE),
            counters=record["counters"],
        ),
    )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CorruptDataError(f"{str(path)!r} is damaged: {error}", file=path.name) from error
    return tensors


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
        version = record["format"]
        step, counters, has_moments = int(record["step"]), dict(record["counters"]), bool(record["has_moments"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{str(path)!r} is damaged: {error!r}", file=path.name) from error
    if version != FORMAT:
        raise InvalidInputError(f"{str(path)!r} has format {version}; this release reads format {FORMAT}")
    return {"step": step, "counters": counters, "has_moments": has_moments}


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n")
