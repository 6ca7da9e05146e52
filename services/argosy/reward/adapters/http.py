"""A plain HTTP endpoint as a reward service.

With `argosy.reward.http.batch=true` (names are configurable):

    POST URL/score   {"items": [{"sample_id": "e0-p7-k1-a0", "data_source": …, "prompt": …, "response": …,
                                 "ground_truth": …, "extra_info": {…}}, …]}
    200              {"results": [{"score": 0.5, "acc": true}, {"score": null}, {"failed": "timeout"}, 1.0]}

Results are in the order of the samples. Without batch one such object is the whole call, and one result the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from argosy.config import Config
from argosy.config.schema.reward_adapters import HttpRewardConfig
from argosy.reward.adapters.base import AdapterCore, ServerOptions, find, outcome_of_json
from argosy.reward.models.endpoint import EndpointError
from argosy.types.errors import ConfigError
from argosy.types.records import Failed, Outcome, ScoreRequest

DEFAULT_FIELDS = ("sample_id", "data_source", "prompt", "response", "ground_truth", "extra_info")
FIELDS = (*DEFAULT_FIELDS, "messages", "prompt_ids", "response_ids", "valid_response")


class HttpCore(AdapterCore):
    """Asks about many samples in one call, or about each in its own."""

    def __init__(self, options: ServerOptions, http: HttpRewardConfig) -> None:
        """Raises ConfigError on a field that there isn't."""
        super().__init__(options)
        self._http = http
        self._fields = dict(http.request) or {name: name for name in DEFAULT_FIELDS}
        for name, source in self._fields.items():
            if source not in FIELDS and not source.startswith("extra_info."):
                raise ConfigError(
                    f"argosy.reward.http.request.{name}: got {source!r}, wants one of {', '.join(FIELDS)} or "
                    "extra_info.KEY"
                )
        used = set(self._fields.values())
        self.needs_messages = "messages" in used
        self.needs_token_ids = bool(used & {"prompt_ids", "response_ids"})
        self.max_batch_size = http.max_batch_size
        self._endpoint = options.endpoint()
        self._label = f"{options.url}{http.path}"

    async def judge(self, items: Sequence[ScoreRequest], deadline_s: float) -> list[Outcome]:
        """In calls of at most max_batch_size samples."""
        if not self._http.batch:
            return await super().judge(items, deadline_s)
        size = self._http.max_batch_size
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        found = await asyncio.gather(*(self._judge_batch(part, deadline_s) for part in parts))
        return [outcome for outcomes in found for outcome in outcomes]

    async def judge_one(self, item: ScoreRequest, deadline_s: float) -> Outcome:
        """One sample in one call."""
        answer, _ = await self._endpoint.post(
            self._http.path, {**self._http.constants, **self._body(item)}, deadline_s=deadline_s
        )
        return outcome_of_json(answer, self._http.score_key, self._label)

    async def _judge_batch(self, items: Sequence[ScoreRequest], deadline_s: float) -> list[Outcome]:
        body = {**self._http.constants, self._http.items_key: [self._body(item) for item in items]}
        try:
            answer, _ = await self._endpoint.post(self._http.path, body, deadline_s=deadline_s)
            results = find(answer, self._http.results_key)
        except EndpointError as error:
            return [Failed(error.reason, error.message)] * len(items)
        except KeyError as error:
            return [Failed("bad_return", f"{self._label} gave {error.args[0]}")] * len(items)
        if not isinstance(results, list) or len(results) != len(items):
            got = f"{len(results)} results" if isinstance(results, list) else type(results).__name__
            message = f"{self._label} gave {got} for {len(items)} samples; each needs its own, in order"
            return [Failed("bad_return", message)] * len(items)
        return [outcome_of_json(result, self._http.score_key, self._label) for result in results]

    def _body(self, item: ScoreRequest) -> dict[str, Any]:
        return {name: _value(item, source) for name, source in self._fields.items()}

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def _value(item: ScoreRequest, source: str) -> Any:
    """One field of a sample as JSON."""
    if source.startswith("extra_info."):
        value: Any = item.extra_info
        for name in source.split(".")[1:]:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value
    values: dict[str, Any] = {
        "sample_id": str(item.sample_id),
        "data_source": item.data_source,
        "prompt": item.prompt_text,
        "response": item.response_text,
        "ground_truth": item.ground_truth,
        "extra_info": dict(item.extra_info),
        "messages": [dict(message) for message in item.messages],
        "prompt_ids": list(item.prompt_ids),
        "response_ids": list(item.response_ids),
        "valid_response": item.valid_response,
    }
    return values[source]


def build(config: Config) -> HttpCore:
    """For `argosy.reward.kind=http`. Raises ConfigError."""
    return HttpCore(ServerOptions.of(config, "http"), config.argosy.reward.http)
