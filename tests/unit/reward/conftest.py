from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions
from argosy.types.ids import SampleId
from argosy.types.records import ScoreRequest

MakeScorers = Callable[..., RewardScorers]
MakeFunction = Callable[..., CustomFunction]


def request(
    k: int, response: str, gold: object = "5", source: str = "openai/gsm8k", extra: Mapping[str, Any] | None = None
) -> ScoreRequest:
    return ScoreRequest(SampleId(0, 0, k), source, "", response, gold, extra or {})


@pytest.fixture
def make_request() -> Callable[..., ScoreRequest]:
    return request


@pytest.fixture
def make_scorers() -> Iterator[MakeScorers]:
    """Scorers that are ended with the test."""
    made: list[RewardScorers] = []

    def make(
        custom: CustomFunction | None = None, *, worker_count: int = 1, timeout_s: float = 20.0, **rest: Any
    ) -> RewardScorers:
        pool = PoolOptions(worker_count=worker_count, timeout_s=timeout_s, queue_size=rest.pop("queue_size", 8192))
        made.append(RewardScorers(RewardOptions(pool, custom, **rest)))
        return made[-1]

    yield make
    for scorers in made:
        scorers.shutdown()


@pytest.fixture
def make_function(tmp_path: Path) -> MakeFunction:
    """A custom function from the source of a file."""

    def make(source: str, *, name: str = "compute_score", **reward_kwargs: Any) -> CustomFunction:
        path = tmp_path / "my_reward.py"
        path.write_text(source)
        return CustomFunction(str(path), name, reward_kwargs)

    return make
