"""Weights as files in memory, from which the server reads them: nothing on a disk, nothing left behind by a crash."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from argosy.rollout.engines.folder import DTYPES
from argosy.types.errors import StorageError, storage_error
from argosy.weightsync.memory import MemoryFile
from argosy.weightsync.tensors import bytes_of, dtype_name

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "model.safetensors"
_ALIGNMENT = 64
"""Bytes; readers may map tensors where they lie."""
_DTYPE_NAMES = {ours: theirs for theirs, ours in DTYPES.items()}


class WeightFolders:
    """Folders with one version each; the newest is kept, to be passed on.

    A folder holds a link to an anonymous file of this process, which lives as long as the process keeps it open. Other
    processes of the same user can open it through the link.

    Args:
        parent: Where the folders are made; they hold no more than a link each.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._held: Path | None = None
        self._files: dict[Path, MemoryFile] = {}

    @property
    def held(self) -> Path | None:
        """The folder of the weights in use; None while they are the model's own."""
        return self._held

    def write(self, tensors: Mapping[str, Tensor]) -> Path:
        """A new folder with these tensors. Takes as long as a copy: not on the loop.

        Raises:
            StorageError: there is no room.
        """
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=self._parent))
        try:
            self._files[folder] = file = _safetensors_file(tensors)
            (folder / _NAME).symlink_to(file.path)
        except OSError as error:
            self.drop(folder)
            raise storage_error(error, folder) from error
        except BaseException:
            self.drop(folder)
            raise
        return folder

    def keep(self, folder: Path) -> None:
        """Hold a folder that `write` made, in place of the one before."""
        self.drop(self._held)
        self._held = folder

    def drop(self, folder: Path | None) -> None:
        """Remove a folder and give its memory back."""
        if folder is None:
            return
        shutil.rmtree(folder, ignore_errors=True)
        self._files.pop(folder, None)
        if folder == self._held:
            self._held = None

    def read(self) -> dict[str, Tensor]:
        """The held tensors. StorageError if there are none."""
        from safetensors.torch import load_file

        if self._held is None:
            raise StorageError("no weights are held")
        tensors: dict[str, Tensor] = load_file(self._held / _NAME)
        return tensors


def _safetensors_file(tensors: Mapping[str, Tensor]) -> MemoryFile:
    """The safetensors format: length of the header, the header as JSON, bytes. (Its own writer makes a temporary file
    and renames it, which an anonymous file doesn't allow.) OSError if the kernel has no room."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[dtype_name(tensor)], "shape": list(tensor.shape), "data_offsets": [start, end]
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    head = struct.pack("<Q", len(text)) + text
    file = MemoryFile(len(head) + end)
    file.array[: len(head)] = np.frombuffer(head, np.uint8)
    at = len(head)
    for tensor in tensors.values():
        data = bytes_of(tensor)
        np.copyto(file.array[at : at + data.size], data)
        at += data.size
    return file
