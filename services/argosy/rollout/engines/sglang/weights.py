"""Weights as a file in memory, from which the server reads them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from argosy.types.errors import StorageError, storage_error

if TYPE_CHECKING:
    from torch import Tensor

_MEMORY = Path("/dev/shm")
_NAME = "model.safetensors"
_SPARE = 1.05


class WeightFolders:
    """Folders with one version each: the newest is kept, to be passed on."""

    def __init__(self) -> None:
        self._held: Path | None = None

    @property
    def held(self) -> Path | None:
        """The folder of the weights in use; None while they are the model's own."""
        return self._held

    def write(self, tensors: Mapping[str, Tensor]) -> Path:
        """A new folder with these tensors, in memory if they fit there. Takes as long as a copy: not on the loop.

        Raises:
            StorageError: there is no room.
        """
        from safetensors.torch import save_file

        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        folder = Path(tempfile.mkdtemp(prefix="argosy-sglang-", dir=_place_for(size)))
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / _NAME)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise storage_error(error, folder) from error
        return folder

    def keep(self, folder: Path) -> None:
        """Hold a folder that `write` made, in place of the one before."""
        self.drop(self._held)
        self._held = folder

    def drop(self, folder: Path | None) -> None:
        """Remove a folder."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if folder == self._held:
            self._held = None

    def read(self) -> dict[str, Tensor]:
        """The held tensors. StorageError if there are none."""
        from safetensors.torch import load_file

        if self._held is None:
            raise StorageError("no weights are held")
        tensors: dict[str, Tensor] = load_file(self._held / _NAME)
        return tensors


def _place_for(size: int) -> Path:
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > size * _SPARE:
        return _MEMORY
    return Path(tempfile.gettempdir())
