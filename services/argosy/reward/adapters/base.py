"""What the adapters share: the server's settings, bounds on calls, and outcomes from JSON."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.config import Config
from argosy.config.schema.reward_adapters import RewardServerConfig
from argosy.reward.custom import outcome_of
from argosy.reward.models.endpoint import Endpoint, EndpointError, EndpointOptions
from argosy.reward.waiting import WaitingRoom
from argosy.types.errors import ConfigError
from argosy.types.records import Abstained, Failed, Outcome, RewardCapabilities, ScoreRequest, ScoreResult

MAX_WAITING = 65536
"""Samples that may wait for their turn: more than a controller of ours ever sends at once."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server, and what it may be asked."""

    kind: str
    url: str
    config: RewardServerConfig

    @classmethod
    def of(cls, config: Config, kind: str) -> ServerOptions:
        """From argosy.reward.server. Raises ConfigError without a URL."""
        server = config.argosy.reward.server
        if server.url is None:
            raise ConfigError(f"argosy.reward.server.url: got null with argosy.reward.kind={kind}; name the server")
        return cls(kind, server.url, server)

    def endpoint(self) -> Endpoint:
        """Connections to it. Raises ConfigError on a wrong URL, or a key that isn't set."""
        server = self.config
        return Endpoint(
            EndpointOptions(
                url=self.url,
                api_key_env=server.api_key_env,
                concurrency=server.concurrency,
                requests_per_minute=server.requests_per_minute,
                timeout_s=server.timeout_s,
                attempts=1 if server.repeat_forbidden else server.attempts,
            )
        )


class AdapterCore(ABC):
    """Implements `argosy.roles.reward.Reward` by asking a server about one sample at a time."""

    needs_messages = False
    needs_token_ids = False
    max_batch_size = 64

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._room = WaitingRoom(MAX_WAITING)

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One outcome per item, in order. What the server does wrong is an outcome, never an exception.

        Raises InvalidInputError for a repeated id, OverloadedError when too many samples wait.
        """
        with self._room.holding(items):
            outcomes = await self.judge(items, deadline_s)
        return [ScoreResult(item.sample_id, outcome) for item, outcome in zip(items, outcomes, strict=True)]

    async def judge(self, items: Sequence[ScoreRequest], deadline_s: float) -> list[Outcome]:
        """Outcomes in the items' order."""
        return list(await asyncio.gather(*(self._bounded(item, deadline_s) for item in items)))

    async def _bounded(self, item: ScoreRequest, deadline_s: float) -> Outcome:
        try:
            return await self.judge_one(item, deadline_s)
        except EndpointError as error:
            return Failed(error.reason, error.message)

    @abstractmethod
    async def judge_one(self, item: ScoreRequest, deadline_s: float) -> Outcome:
        """The outcome of one sample. May raise EndpointError."""

    async def capabilities(self) -> RewardCapabilities:
        """As configured: such servers can't tell."""
        return RewardCapabilities(
            data_sources=self.options.config.data_sources,
            needs_token_ids=self.needs_token_ids,
            needs_messages=self.needs_messages,
            max_batch_size=self.max_batch_size,
            repeat_forbidden=self.options.config.repeat_forbidden,
            name=f"{self.options.kind} {self.options.url}",
        )

    @abstractmethod
    async def close(self) -> None:
        """Let the connections go."""


def find(value: Any, path: str) -> Any:
    """The member of nested JSON objects that a dotted path names. Raises KeyError with what is there instead.

    >>> find({"data": {"results": [1]}}, "data.results")
    [1]
    """
    for name in path.split(".") if path else ():
        if not isinstance(value, Mapping) or name not in value:
            keys = ", ".join(map(repr, list(value)[:10])) if isinstance(value, Mapping) else type(value).__name__
            raise KeyError(f"no {path!r} (there is: {keys or 'nothing'})")
        value = value[name]
    return value


def outcome_of_json(result: Any, score_key: str, label: str) -> Outcome:
    """What one result of a server means.

    A number, or an object with the score at `score_key`; `parts` and the scalars beside the score become parts.
    `{"abstained": "why"}` and `{"failed": "code", "message": "…"}` are what they say, unless they are null, false or
    empty; a null score abstains.

    >>> outcome_of_json({"reward": 1, "parts": {"acc": True}}, "reward", "the server")
    Scored(score=1.0, parts={'acc': True}, token_scores=())
    """
    if not isinstance(result, Mapping):
        return outcome_of(result, label)
    if result.get("failed"):
        return Failed(str(result["failed"])[:64], str(result.get("message", ""))[:1000])
    if result.get("abstained"):
        return Abstained(str(result["abstained"])[:1000])
    try:
        score = find(result, score_key)
    except KeyError as error:
        return Failed("bad_return", f"{label} gave {error.args[0]}")
    beside = find(result, score_key.rpartition(".")[0])
    parts = {name: value for name, value in beside.items() if isinstance(value, str | int | float)}
    parts.pop(score_key.rpartition(".")[2], None)
    named = result.get("parts")
    return outcome_of({**parts, **(named if isinstance(named, Mapping) else {}), "score": score}, label)
