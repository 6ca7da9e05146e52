"""`JudgeScorer`: the Reward role over a language model that is asked for a number."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from argosy.reward.models.costs import Usage
from argosy.reward.models.endpoint import EndpointError
from argosy.reward.models.judge.memory import JudgementMemory, key_of
from argosy.reward.models.judge.prompt import JudgePrompt, PromptError
from argosy.reward.models.judge.speakers import Speaker
from argosy.reward.models.judge.verdict import Scale, read_verdict
from argosy.reward.waiting import WaitingRoom
from argosy.types.errors import InvalidInputError
from argosy.types.records import Failed, Outcome, RewardCapabilities, Scored, ScoreRequest, ScoreResult

_LOG = logging.getLogger(__name__)
_REPORT_EVERY_S = 30.0
_SHOWN = 200
_AGAIN = "Your reply has no readable score. Reply with one line only, of the form: Score: N"


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """How verdicts become scores."""

    scale: Scale = field(default_factory=Scale)
    normalise: bool = True
    """Scores from 0 (lowest) to 1 (highest); False: the verdict itself."""
    judgements: int = 1
    """Verdicts of each sample; their mean is the score. At least half of them must be readable."""
    attempts: int = 3
    """Askings for one verdict until it is readable."""
    memory_size: int = 65536
    """Outcomes that are remembered."""
    queue_size: int = 8192
    """Samples that wait or run; more are told to come again."""


class JudgeScorer:
    """Implements `argosy.roles.reward.Reward`. Made in any thread; used, and closed, in one event loop."""

    def __init__(self, speaker: Speaker, prompt: JudgePrompt, options: JudgeOptions | None = None) -> None:
        self._speaker = speaker
        self._prompt = prompt
        self._options = options or JudgeOptions()
        self._memory = JudgementMemory(self._options.memory_size)
        self._room = WaitingRoom(self._options.queue_size)
        self.usage = Usage()
        """Of all askings since the start."""
        self.failures: Counter[str] = Counter()
        """Failed samples by reason."""
        self.unreadable = 0
        """Replies without a verdict; each was asked for again, or ended its sample."""
        self._reported_at = time.monotonic()
        self._reported_requests = 0

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One outcome per item, in the items' order.

        A sample that was judged before, with the same content, costs nothing. One that isn't judged within
        `deadline_s` is Failed("timeout"). Raises InvalidInputError for a repeated id, OverloadedError when too many
        samples wait.
        """
        with self._room.holding(items):
            outcomes = await asyncio.gather(*(self._outcome(item, deadline_s) for item in items))
        self.failures.update(outcome.reason for outcome in outcomes if isinstance(outcome, Failed))
        self._report()
        return [ScoreResult(item.sample_id, outcome) for item, outcome in zip(items, outcomes, strict=True)]

    async def capabilities(self) -> RewardCapabilities:
        """Any data source, with messages. Repeating is allowed: what was judged is remembered."""
        return RewardCapabilities(
            ("*",), needs_messages=True, name=f"judge:{self._speaker.name}", version=self._prompt.digest
        )

    @property
    def remembered(self) -> int:
        """Askings that the memory has saved."""
        return self._memory.hits

    async def close(self) -> None:
        """End what runs and close connections."""
        await self._memory.close()
        await self._speaker.close()
        self._report(last=True)

    async def _outcome(self, item: ScoreRequest, deadline_s: float) -> Outcome:
        try:
            messages = self._prompt.messages(item)
        except PromptError as error:
            return Failed("bad_request", str(error))
        key = key_of(item.sample_id, messages, self._prompt.digest)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._memory.get(key, lambda: self._judge(messages, f"{key[0]}/{key[1]}", deadline_s))
        except TimeoutError:
            return Failed("timeout", f"judge {self._speaker.name!r} gave no verdict within {deadline_s:.3g} s")

    async def _judge(self, messages: list[dict[str, str]], key: str, deadline_s: float) -> Outcome:
        """All judgements of one sample."""
        end = time.monotonic() + deadline_s
        count = self._options.judgements
        found = await asyncio.gather(*(self._verdict(messages, f"{key}/{number}", end) for number in range(count)))
        usage, values, faults = Usage(), [], []
        for verdict, used in found:
            usage.add(used)
            if isinstance(verdict, Failed):
                faults.append(verdict)
            else:
                values.append(verdict)
        self.usage.add(usage)
        if faults and 2 * len(values) < count:
            return faults[0]
        mean = sum(values) / len(values)
        parts = {
            "verdict": mean,
            "unreadable": float(len(faults)),
            "requests": float(usage.requests),
            "prompt_tokens": float(usage.prompt_tokens),
            "completion_tokens": float(usage.completion_tokens),
            "cost": usage.cost,
        }
        if count > 1:
            parts["spread"] = max(values) - min(values)
        return Scored(self._options.scale.share(mean) if self._options.normalise else mean, parts)

    async def _verdict(self, messages: list[dict[str, str]], key: str, end: float) -> tuple[float | Failed, Usage]:
        """One verdict. An unreadable reply is answered with the form that is wanted, a bounded number of times."""
        usage = Usage()
        asked, said, cut = list(messages), "", ""
        for attempt in range(self._options.attempts):
            left_s = end - time.monotonic()
            if left_s <= 0:
                return Failed("timeout", f"judge {self._speaker.name!r} gave no readable verdict in time"), usage
            try:
                reply = await self._speaker.say(asked, f"{key}/{attempt}", deadline_s=left_s)
            except EndpointError as error:
                usage.add(error.usage)
                return Failed(error.reason, error.message), usage
            except InvalidInputError as error:
                return Failed("bad_request", error.message), usage
            usage.add(reply.usage)
            verdict = read_verdict(reply.text, self._options.scale, cut=bool(reply.cut))
            if verdict is not None:
                return verdict, usage
            self.unreadable += 1
            cut = reply.cut or cut
            said = reply.text.strip()[-_SHOWN:]
            asked = [*messages, {"role": "assistant", "content": said or "…"}, {"role": "user", "content": _AGAIN}]
        message = f"{self._options.attempts} replies of {self._speaker.name!r} had no verdict: {said!r}"
        if cut:
            message += f"; cut before its end, by {cut!r} (argosy.reward.judge.max_tokens)"
        return Failed("unreadable_judgement", message), usage

    def _report(self, *, last: bool = False) -> None:
        """A line in the log now and then: what was asked, and what it cost."""
        now = time.monotonic()
        if self.usage.requests == self._reported_requests or (not last and now - self._reported_at < _REPORT_EVERY_S):
            return
        self._reported_at, self._reported_requests = now, self.usage.requests
        usage = self.usage
        _LOG.info(
            "judge %s: %d requests (%d repeated), %d prompt and %d completion tokens, cost %.4f; "
            "%d replies unreadable, %d judgements remembered, failed samples %s",
            self._speaker.name, usage.requests, usage.repeats, usage.prompt_tokens, usage.completion_tokens,
            usage.cost, self.unreadable, self._memory.hits, dict(self.failures),
        )  # fmt: skip
