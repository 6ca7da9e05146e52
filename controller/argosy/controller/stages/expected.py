"""How many tokens a sample still costs its server: what is known of it, and for the rest what answers were like."""

from __future__ import annotations

from argosy.types.records import GenerateRequest

MEMORY = 256
"""Finished answers over which their mean length is taken, the newer ones counting more: lengths drift in a run."""
LEAST_REST = 0.25
"""Of the mean length: what an answer is thought to have left that is longer than the mean already."""


class ExpectedTokens:
    """Learns from finished answers how long answers are.

    >>> from argosy.types.ids import SampleId
    >>> from argosy.types.records import SamplingParams
    >>> expected, request = ExpectedTokens(), GenerateRequest(SampleId(0, 0, 0), (1, 2, 3), SamplingParams(100))
    >>> expected.of(request), expected.of(request, has_prompt=True)
    (103, 100)
    >>> for length in (20, 40):
    ...     expected.learn(length)
    >>> expected.of(request)
    33
    """

    def __init__(self) -> None:
        self._mean = 0.0
        self._count = 0

    def learn(self, token_count: int) -> None:
        """An answer has ended with so many tokens."""
        self._count = min(self._count + 1, MEMORY)
        self._mean += (token_count - self._mean) / self._count

    def of(self, request: GenerateRequest, *, has_prompt: bool = False) -> int:
        """Tokens that a server would have to compute for it, at least 1.

        Its prompt and what it has been answered already are computed at once, unless the server has them
        (`has_prompt`: of another sample of the group); what is still to come is as long as answers are on average, or
        as long as it may be while none has ended.
        """
        made = len(request.generated.token_ids)
        most = max(request.params.max_tokens - made, 1)
        rest = max(self._mean - made, LEAST_REST * self._mean) if self._count else most
        return max(round(min(rest, most)), 1) + made + (0 if has_prompt else len(request.prompt_ids))
