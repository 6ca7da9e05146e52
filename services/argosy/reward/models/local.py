"""`ModelScorer`: the Reward role over a scoring model in this process.

One thread writes conversations as token ids, another runs forward passes, which concurrent calls share (`sharing`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from argosy.modeling.compute_thread import ComputeThread
from argosy.reward.models.batching import BatchLimits
from argosy.reward.models.dialogue import Dialogue, DialogueWriter, UnreadableSampleError
from argosy.reward.models.outcomes import with_parts
from argosy.reward.models.scores import ScoreRule
from argosy.reward.models.sharing import Network, SharedPasses
from argosy.reward.waiting import checked
from argosy.types.errors import DeadlineError, InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, RewardCapabilities, ScoreRequest, ScoreResult

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScorerOptions:
    """How the model runs."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    rule: ScoreRule = field(default_factory=ScoreRule)
    threads: int = 0
    """Compute threads; 0 leaves it to torch."""
    max_pending: int = 64
    """Calls that wait or run; one more is told to come again."""
    gather_s: float = 0.003
    """How long the first call after a pause waits for others to share its pass with."""
    version: str = ""
    """Told to clients."""


class ModelScorer:
    """Implements `argosy.roles.reward.Reward`. `close` it when done."""

    def __init__(self, network: Network, writer: DialogueWriter, options: ScorerOptions | None = None) -> None:
        self._network = network
        self._writer = writer
        self._options = options or ScorerOptions()
        self._writing = ComputeThread(f"writer of {network.name}", max_pending=self._options.max_pending)
        self._passes = SharedPasses(
            network,
            self._options.limits,
            threads=self._options.threads,
            gather_s=self._options.gather_s,
            max_calls=self._options.max_pending,
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
            dialogues, outcomes = await self._writing.run(lambda: self._write(items), deadline_s=deadline_s)
        except DeadlineError:
            dialogues, outcomes = {}, {}
        outcomes |= await self._scores(dialogues, end)
        late = _late(self._network.name)
        found = [ScoreResult(item.sample_id, outcomes.get(item.sample_id, late)) for item in items]
        _report(self._network.name, (result.outcome for result in found), dialogues.values())
        return found

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
        self._writing.close(wait=False)
        self._passes.close()

    def _write(self, items: Sequence[ScoreRequest]) -> tuple[dict[SampleId, Dialogue], dict[SampleId, Outcome]]:
        """What the model reads of each sample, and the outcomes of those that can't be written."""
        dialogues: dict[SampleId, Dialogue] = {}
        outcomes: dict[SampleId, Outcome] = {}
        for item in items:
            try:
                dialogues[item.sample_id] = self._writer.write(item)
            except UnreadableSampleError as error:
                outcomes[item.sample_id] = Failed(error.reason, error.message)
        return dialogues, outcomes

    async def _scores(self, dialogues: dict[SampleId, Dialogue], end: float) -> dict[SampleId, Outcome]:
        """Of what could be written; nothing of what isn't scored in time."""
        try:
            rows = await self._passes.values([dialogue.ids for dialogue in dialogues.values()], end=end)
        except DeadlineError:
            return {}
        outcomes: dict[SampleId, Outcome] = {}
        for (sample, dialogue), row in zip(dialogues.items(), rows, strict=True):
            if isinstance(row, InvalidInputError):
                outcomes[sample] = Failed("bad_request", row.message)
                continue
            outcome = self._options.rule.apply(row, model=self._network.name)
            parts = {"tokens": float(len(dialogue.ids)), "truncated": dialogue.truncated}
            outcomes[sample] = with_parts(outcome, parts)
        return outcomes


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
