"""Which prompts count as cached: a model of a prefix cache that holds whole prompts."""

from __future__ import annotations

from collections import OrderedDict


class PromptCache:
    """The prompts used last, up to a number of tokens."""

    def __init__(self, token_budget: int) -> None:
        self._token_budget = token_budget
        self._prompts: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.token_count = 0

    def take(self, prompt_ids: tuple[int, ...]) -> int:
        """Use a prompt; returns how many of its tokens were there: all but the last, which is decoded, or none."""
        cached = prompt_ids in self._prompts
        if cached:
            self._prompts.move_to_end(prompt_ids)
            return len(prompt_ids) - 1
        if len(prompt_ids) <= self._token_budget:
            self._prompts[prompt_ids] = None
            self.token_count += len(prompt_ids)
        while self.token_count > self._token_budget:
            oldest, _ = self._prompts.popitem(last=False)
            self.token_count -= len(oldest)
        return 0

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._prompts.clear()
        self.token_count = 0
