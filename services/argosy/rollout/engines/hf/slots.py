"""The key/value cache: one row per running sample, without holes, so that decode reads the plain slice [0:B]."""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = 64
"""Capacity grows in multiples of it."""


class SlotCache:
    """Keys and values as one tensor [2, L, S, T, K, D]; T grows by doubling up to the context limit."""

    def __init__(
        self,
        *,
        layer_count: int,
        slot_count: int,
        kv_head_count: int,
        head_size: int,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slot_count = slot_count
        self._max_model_len = max_model_len
        capacity = min(_ROUNDING, max_model_len)
        self.data = torch.zeros(
            (2, layer_count, slot_count, capacity, kv_head_count, head_size), dtype=dtype, device=device
        )

    @property
    def capacity(self) -> int:
        """Tokens per slot right now."""
        return int(self.data.shape[3])

    def reserve(self, token_count: int) -> None:
        """Make room for `token_count` tokens per slot."""
        if token_count <= self.capacity:
            return
        wanted = max(token_count, 2 * self.capacity)
        wanted = min(-(-wanted // _ROUNDING) * _ROUNDING, self._max_model_len)
        old = self.data
        shape = list(old.shape)
        shape[3] = max(wanted, token_count)
        # Zeros, not empty: masked places are multiplied by 0, and 0 × NaN of stray memory would be NaN.
        # A pass may call this in inference mode, whose tensors nothing outside of it may write to.
        with torch.inference_mode(False):
            self.data = torch.zeros(shape, dtype=old.dtype, device=old.device)
            self.data[:, :, :, : old.shape[3]] = old

    def release(self) -> None:
        """Free the memory. Only while no row is in use; it grows again as it is needed."""
        with torch.inference_mode(False):
            self.data = self.data.new_zeros((*self.data.shape[:3], 1, *self.data.shape[4:]))

    def move(self, source: int, target: int, token_count: int) -> None:
        """Copy a row's first tokens onto another row."""
        self.data[:, :, target, :token_count] = self.data[:, :, source, :token_count]

    def fill(self, slot: int, prefix: Tensor) -> None:
        """Put keys and values [2, L, P, K, D] at the front of a row."""
        self.data[:, :, slot, : prefix.shape[2]] = prefix
