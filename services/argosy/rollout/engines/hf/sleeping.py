"""What the embedded engine gives up while it sleeps: its key/value cache, and its weights or their place on a GPU.

Both functions belong to the engine's thread.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from argosy.rollout.engines.hf.engine import Engine

KEEP_WEIGHTS, DROP_WEIGHTS = LEVELS = (1, 2)


class Nap:
    """One sleep of an engine in which nothing runs.

    Level 1 frees the cache, and moves the weights to main memory where they are on a GPU. Level 2 frees the weights as
    well: the engine is stale until a whole update has come.
    """

    def __init__(self, engine: Engine, level: int) -> None:
        self._engine = engine
        self._module: nn.Module = engine.runner.model.module
        self._device: torch.device = engine.runner.model.device
        self._shapes: dict[str, torch.Size] = {}
        engine.prefixes.clear()
        engine.runner.slots.release()
        if level == DROP_WEIGHTS:
            engine.version = None
            for name, tensor in _owned(self._module):
                self._shapes[name] = tensor.shape
                tensor.data = tensor.new_empty(0)
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


def _owned(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What an update brings, each tensor once: parameters, and the buffers that are part of the state dict."""
    persistent = module.state_dict().keys()
    yield from module.named_parameters()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in persistent)


def return_memory(device: torch.device) -> None:
    """Give freed memory back to the system, which allocators else keep for themselves."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others return memory by themselves
        if trim is not None:
            trim(0)
