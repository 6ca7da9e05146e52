"""Keys and values of prompts, kept for the other samples of the group; cleared on every weight update (case D1)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor

Prefix = tuple[int, ...]


class PrefixStore:
    """Least recently used prompts go first; at most `token_budget` tokens are kept."""

    def __init__(self, token_budget: int) -> None:
        self._token_budget = token_budget
        self._entries: OrderedDict[Prefix, Tensor] = OrderedDict()
        self.token_count = 0

    def get(self, prefix: Prefix) -> Tensor | None:
        """Keys and values [2, L, P, K, D], or None."""
        entry = self._entries.get(prefix)
        if entry is not None:
            self._entries.move_to_end(prefix)
        return entry

    def put(self, prefix: Prefix, entry: Tensor) -> None:
        """Keep an entry; makes room first. One larger than the whole budget isn't kept."""
        if len(prefix) > self._token_budget or prefix in self._entries:
            return
        while self.token_count + len(prefix) > self._token_budget:
            oldest, _ = self._entries.popitem(last=False)
            self.token_count -= len(oldest)
        self._entries[prefix] = entry
        self.token_count += len(prefix)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.token_count = 0
