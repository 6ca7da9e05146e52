"""What the embedded engine gives up while it sleeps: its key/value cache, and its weights or their place on a GPU.

Everything here belongs to the engine's thread.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from argosy.modeling.memory import return_freed_memory
from argosy.rollout.engines.hf.engine import Engine

KEEP_WEIGHTS, DROP_WEIGHTS = LEVELS = (1, 2)
_MADV_DONTNEED = 4


class Nap:
    """One sleep of an engine in which nothing runs.

    Level 1 frees the cache, and moves the weights to main memory where they are on a GPU. Level 2 frees the weights as
    well: the engine is stale until a whole update has come.
    """

    def __init__(self, engine: Engine, level: int) -> None:
        self._module: nn.Module = engine.runner.model.module
        self._device: torch.device = engine.runner.model.device
        self._shapes: dict[str, torch.Size] = {}
        engine.forget()
        engine.runner.slots.release()
        if level == DROP_WEIGHTS:
            engine.version = None
            self._drop_weights()
        elif self._device.type != "cpu":
            self._module.to("cpu")
        return_memory(self._device)

    def end(self) -> None:
        """Take the memory again. Dropped weights come back as room only: what is in it is anything."""
        for name, tensor in _owned(self._module):
            if name in self._shapes:
                tensor.data = torch.empty(self._shapes[name], dtype=tensor.dtype, device=self._device)
        if not self._shapes and self._device.type != "cpu":
            self._module.to(self._device)

    def _drop_weights(self) -> None:
        owned = list(_owned(self._module))
        if self._device.type == "cpu" and sys.platform == "linux":
            # The memory goes and the addresses stay: compiled code may hold pointers to them.
            for storage in {
                tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for _, tensor in owned
            }.values():
                drop_pages(storage.data_ptr(), storage.nbytes())
            return
        for name, tensor in owned:
            self._shapes[name] = tensor.shape
            tensor.data = tensor.new_empty(0)


def _owned(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What an update brings, each tensor once: parameters, and the buffers that are part of the state dict."""
    persistent = module.state_dict().keys()
    yield from module.named_parameters()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in persistent)


def drop_pages(address: int, size_bytes: int) -> None:
    """Give the whole pages inside a piece of this process's memory back to the system; they read as zeros afterwards.

    (Linux; of a private file mapping: as the file.) Raises OSError.
    """
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= start:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"madvise of {end - start} bytes failed with error {number}")


def return_memory(device: torch.device) -> None:
    """Give freed memory back to the system, which allocators else keep for themselves."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return_freed_memory()
