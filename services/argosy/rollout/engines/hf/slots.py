"""The key/value cache: one row per running sample, without holes, so that decode reads the plain slice [0:B]."""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = 64
"""Capacity grows in multiples of it."""
_TIGHT_ROUNDING = 16
"""Where memory is short: attention looks at multiples of it (runner.py)."""


class SlotCache:
    """Keys and values as one tensor [2, L, S, T, K, D]; T grows by doubling up to the context limit.

    Args:
        token_count: S × T stays within it (up to rounding): long rows then leave room for fewer of them. 0: no bound.
            While it grows, the old tensor is there as well.
    """

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
        token_count: int = 0,
    ) -> None:
        self.slot_count = slot_count
        self._max_model_len = max_model_len
        self._token_count = token_count or slot_count * max_model_len
        capacity = min(_ROUNDING, max_model_len)
        rows = max(1, min(slot_count, self._token_count // capacity))
        self.data = torch.zeros((2, layer_count, rows, capacity, kv_head_count, head_size), dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Tokens per slot right now."""
        return int(self.data.shape[3])

    @property
    def row_count(self) -> int:
        """Slots that have memory right now."""
        return int(self.data.shape[2])

    def reserve(self, token_count: int, row_count: int = 1) -> None:
        """Make room for `token_count` tokens in each of the first `row_count` slots; no running sample has more."""
        if token_count <= self.capacity and row_count <= self.row_count:
            return
        rows, capacity = self._shape_for(token_count, row_count)
        old = self.data
        shape = (*old.shape[:2], rows, capacity, *old.shape[4:])
        # Zeros, not empty: masked places are multiplied by 0, and 0 × NaN of stray memory would be NaN.
        # A pass may call this in inference mode, whose tensors nothing outside of it may write to.
        with torch.inference_mode(False):
            self.data = torch.zeros(shape, dtype=old.dtype, device=old.device)
            kept_rows, kept = min(rows, old.shape[2]), min(capacity, old.shape[3])
            self.data[:, :, :kept_rows, :kept] = old[:, :, :kept_rows, :kept]

    def _shape_for(self, token_count: int, row_count: int) -> tuple[int, int]:
        """Rows and capacity: generous, so that it grows rarely, or just enough if that is too much."""
        rows, capacity = max(self.row_count, row_count), self.capacity
        if row_count > self.row_count:
            rows = min(max(row_count, 2 * self.row_count), self.slot_count)
        if token_count > capacity:
            capacity = min(_up(max(token_count, 2 * capacity), _ROUNDING), self._max_model_len)
        if rows * capacity > self._token_count:
            capacity = min(_up(token_count, _TIGHT_ROUNDING), self._max_model_len)
            rows = max(row_count, min(rows, self._token_count // capacity))
        return rows, max(capacity, token_count)

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


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
