"""`ModelScorer`: the Reward role over a scoring model in this process, one forward pass at a time in one thread."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from argosy.modeling.compute_thread import ComputeThread
from argosy.reward.models.batching import BatchLimits
from argosy.reward.models.dialogue import Dialogue, DialogueWriter, UnreadableSampleError
from argosy.reward.models.outcomes import with_parts
from argosy.reward.models.scores import ScoreRule
from argosy.reward.waiting import checked
from argosy.types.errors import AbortedError, DeadlineError, InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, RewardCapabilities, ScoreRequest, ScoreResult

_LOG = logging.getLogger(__name__)


class Network(Protocol):
    """What `argosy.reward.models.network.ScoringNetwork` is to the scorer; here, so that torch stays out."""

    name: str

    def values(
        self, sequences: Sequence[Sequence[int]], limits: BatchLimits, *, cancelled: Callable[[], bool]
    ) -> list[list[float]]:
        """One value per label for each sequence."""
        ...


@dataclass(frozen=True, slots=True)
class ScorerOptions:
    """How the model runs."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    rule: ScoreRule = field(default_factory=ScoreRule)
    threads: int = 0
    """Compute threads; 0 leaves it to torch."""
    max_pending: int = 64
    """Calls that wait or run; one more is told to come again."""
    version: str = ""
    """Told to clients."""


class ModelScorer:
    """Implements `argosy.roles.reward.Reward`. `close` it when done."""

    def __init__(self, network: Network, writer: DialogueWriter, options: ScorerOptions | None = None) -> None:
        self._network = network
        self._writer = writer
        self._options = options or ScorerOptions()
        self._thread = ComputeThread(
            f"reward model {network.name}", threads=self._options.threads, max_pending=self._options.max_pending
        )

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One outcome per item, in the items' order.

        Samples that aren't scored within `deadline_s` are Failed("timeout"). Raises InvalidInputError for a repeated
        id, OverloadedError when too many calls wait.
        """
        checked(items)
        if not items:
            return []
        end = time.monotonic() + deadline_s
        try:
            outcomes = await self._thread.run(lambda: self._outcomes(items, end), deadline_s=deadline_s)
        except DeadlineError:
            outcomes = [_late(self._network.name)] * len(items)
        return [ScoreResult(item.sample_id, outcome) for item, outcome in zip(items, outcomes, strict=True)]

    async def capabilities(self) -> RewardCapabilities:
        """Any data source; conversations, or the policy's token ids where the model reads those."""
        reads_ids = self._writer.tokenizer is None
        return RewardCapabilities(
            ("*",),
            needs_token_ids=reads_ids,
            needs_messages=not reads_ids,
            name=f"model:{self._network.name}",
            version=self._options.version,
        )

    async def close(self) -> None:
        """Let the running pass finish, drop what waits."""
        self._thread.close(wait=False)

    def _outcomes(self, items: Sequence[ScoreRequest], end: float) -> list[Outcome]:
        """In the compute thread."""
        outcomes: dict[SampleId, Outcome] = {}
        dialogues: dict[SampleId, Dialogue] = {}
        for item in items:
            try:
                dialogues[item.sample_id] = self._writer.write(item)
            except UnreadableSampleError as error:
                outcomes[item.sample_id] = Failed(error.reason, error.message)
        limits, name = self._options.limits, self._network.name
        try:
            values = self._network.values(
                [dialogue.ids for dialogue in dialogues.values()], limits, cancelled=lambda: time.monotonic() > end
            )
        except AbortedError:
            return [outcomes.get(item.sample_id, _late(name)) for item in items]
        except InvalidInputError as error:
            return [outcomes.get(item.sample_id, Failed("bad_request", error.message)) for item in items]
        for (sample, dialogue), row in zip(dialogues.items(), values, strict=True):
            outcome = self._options.rule.apply(row, model=name)
            parts = {"tokens": float(len(dialogue.ids)), "truncated": dialogue.truncated}
            outcomes[sample] = with_parts(outcome, parts)
        _report(name, outcomes.values(), dialogues.values())
        return [outcomes[item.sample_id] for item in items]


def _late(name: str) -> Failed:
    return Failed("timeout", f"model {name!r} did not score within the call's deadline")


def _report(name: str, outcomes: Iterable[Outcome], dialogues: Iterable[Dialogue]) -> None:
    """Warn of what a user should know: failures and cut conversations."""
    failed = Counter(outcome.reason for outcome in outcomes if isinstance(outcome, Failed))
    cut = sum(dialogue.truncated for dialogue in dialogues)
    if failed:
        _LOG.warning("reward model %s: failed samples: %s", name, dict(failed))
    if cut:
        _LOG.warning("reward model %s: %d conversations were cut to its length", name, cut)
