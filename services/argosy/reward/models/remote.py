"""`RemoteScorer`: the Reward role over a scoring model that an HTTP server holds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence

from argosy.reward.models.costs import Usage
from argosy.reward.models.dialogue import DialogueWriter, UnreadableSampleError
from argosy.reward.models.endpoint import Endpoint, EndpointError
from argosy.reward.models.outcomes import with_parts
from argosy.reward.models.scores import ScoreRule
from argosy.reward.models.shapes import ShapeError, path_of, payload_of, read_values
from argosy.reward.waiting import WaitingRoom
from argosy.types.records import Failed, Outcome, RewardCapabilities, ScoreRequest, ScoreResult

_LOG = logging.getLogger(__name__)
_REPORT_EVERY_S = 30.0
_QUEUE_SIZE = 8192


class RemoteScorer:
    """Implements `argosy.roles.reward.Reward`. Made in any thread; used, and closed, in one event loop.

    Args:
        endpoint: The server.
        model: Its name for the model.
        api: How it is asked: `argosy.reward.models.shapes`.
        writer: Makes token ids; None where the server reads messages ("chat", "score").
        rule: From values to the score.
    """

    def __init__(
        self, endpoint: Endpoint, model: str, api: str, writer: DialogueWriter | None, rule: ScoreRule | None = None
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._api = api
        self._writer = writer
        self._rule = rule or ScoreRule()
        self._writing = asyncio.Lock()  # a fast tokenizer may not be used by two threads at once
        self._room = WaitingRoom(_QUEUE_SIZE)
        self.usage = Usage()
        """Of all calls since the start."""
        self._reported_at = time.monotonic()
        self._reported_requests = 0

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One outcome per item, in the items' order.

        Raises InvalidInputError for a repeated id, OverloadedError when too many samples wait.
        """
        with self._room.holding(items):
            outcomes = await asyncio.gather(*(self._outcome(item, deadline_s) for item in items))
        self._report(outcomes)
        return [ScoreResult(item.sample_id, outcome) for item, outcome in zip(items, outcomes, strict=True)]

    async def capabilities(self) -> RewardCapabilities:
        """Any data source; conversations, or the policy's token ids where the model reads those."""
        reads_ids = self._writer is not None and self._writer.tokenizer is None
        return RewardCapabilities(
            ("*",), needs_token_ids=reads_ids, needs_messages=not reads_ids, name=f"model:{self._model}",
            version=self._api,
        )  # fmt: skip

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def _outcome(self, item: ScoreRequest, deadline_s: float) -> Outcome:
        parts: dict[str, float | str | bool] = {}
        try:
            if self._writer is None:
                if not item.messages:
                    raise UnreadableSampleError("bad_request", "the sample came without messages")
                turns = [*item.messages, {"role": "assistant", "content": item.response_text}]
                payload = payload_of(self._api, self._model, messages=turns)
                expected = sum(len(str(turn.get("content"))) for turn in turns) // 3
            else:
                async with self._writing:
                    dialogue = await asyncio.to_thread(self._writer.write, item)
                payload = payload_of(self._api, self._model, ids=dialogue.ids)
                expected = len(dialogue.ids)
                parts = {"tokens": float(len(dialogue.ids)), "truncated": dialogue.truncated}
            answer, usage = await self._endpoint.post(
                path_of(self._api), payload, deadline_s=deadline_s, expected_tokens=expected
            )
            self.usage.add(usage)
            values = read_values(self._api, answer)
        except UnreadableSampleError as error:
            return Failed(error.reason, error.message)
        except EndpointError as error:
            self.usage.add(error.usage)
            return Failed(error.reason, f"model {self._model!r}: {error.message}")
        except ShapeError as error:
            return Failed("bad_return", f"model {self._model!r}: {error}")
        parts |= {"requests": float(usage.requests), "cost": usage.cost}
        return with_parts(self._rule.apply(values, model=self._model), parts)

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        """Failures at once, what it cost now and then."""
        failed = Counter(outcome.reason for outcome in outcomes if isinstance(outcome, Failed))
        if failed:
            _LOG.warning("reward model %s: failed samples: %s", self._model, dict(failed))
        now, usage = time.monotonic(), self.usage
        if now - self._reported_at < _REPORT_EVERY_S or usage.requests == self._reported_requests:
            return
        self._reported_at, self._reported_requests = now, usage.requests
        _LOG.info(
            "reward model %s: %d requests (%d repeated), %d prompt tokens, cost %.4f",
            self._model, usage.requests, usage.repeats, usage.prompt_tokens, usage.cost,
        )  # fmt: skip
