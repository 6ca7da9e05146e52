"""Forward passes that concurrent calls share: fewer passes, the same scores, and nobody pays for another's fault."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from argosy.modeling.loading import ModelSource
from argosy.reward.models.batching import BatchLimits
from argosy.reward.models.network import load_network
from argosy.reward.models.sharing import SharedPasses
from argosy.types.errors import DeadlineError, InvalidInputError, UnavailableError
from support.scoring import save_tiny_scorer


class Network:
    """A sequence's value is its first id. The first pass waits for `gate`, so that others gather behind it."""

    name = "the-model"

    def __init__(self) -> None:
        self.passes: list[list[Sequence[int]]] = []
        self.gate = threading.Event()
        self._begun = threading.Event()

    async def begun(self) -> None:
        """Until the first pass runs."""
        assert await asyncio.to_thread(self._begun.wait, 30)

    def values(
        self, sequences: Sequence[Sequence[int]], limits: BatchLimits, *, cancelled: Callable[[], bool]
    ) -> list[list[float]]:
        self.passes.append(list(sequences))
        self._begun.set()
        self.gate.wait(30)
        if any(-1 in sequence for sequence in sequences):
            raise InvalidInputError("an id outside the vocabulary")
        if any(-2 in sequence for sequence in sequences):
            raise RuntimeError("out of memory")
        return [[float(sequence[0])] for sequence in sequences]


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


async def behind(network: Network, passes: SharedPasses, *calls: Sequence[Sequence[int]]) -> list[object]:
    """What calls get that gather while the pass of a first one runs."""
    first = asyncio.ensure_future(passes.values([[99] * 9], end=soon()))
    await network.begun()
    others = [asyncio.ensure_future(passes.values(call, end=soon())) for call in calls]
    await asyncio.sleep(0.02)
    network.gate.set()
    assert await first == [[99.0]]
    return list(await asyncio.gather(*others, return_exceptions=True))


async def test_calls_that_wait_together_share_a_pass() -> None:
    network = Network()
    passes = SharedPasses(network, BatchLimits(max_tokens=64))
    found = await behind(network, passes, *([[k] * 4] for k in range(10)))
    passes.close()
    assert found == [[[float(k)]] for k in range(10)]
    assert [len(one) for one in network.passes] == [1, 10]


async def test_calls_of_one_moment_share_the_first_pass() -> None:
    network = Network()
    network.gate.set()
    passes = SharedPasses(network, BatchLimits(), gather_s=0.2)
    found = await asyncio.gather(*(passes.values([[k] * 4], end=soon()) for k in range(5)))
    passes.close()
    assert found == [[[float(k)]] for k in range(5)]
    assert len(network.passes) == 1


async def test_passes_are_of_like_lengths_within_the_budget_and_oldest_first() -> None:
    network = Network()
    passes = SharedPasses(network, BatchLimits(max_tokens=20))
    calls = [[[1] * 10, [2] * 2], [[3] * 10], [[4] * 2, [5] * 10]]
    found = await behind(network, passes, *calls)
    passes.close()
    assert found == [[[1.0], [2.0]], [[3.0]], [[4.0], [5.0]]]
    assert [[row[0] for row in one] for one in network.passes[1:]] == [[1, 3], [2, 4], [5]]


async def test_a_sequence_that_cannot_be_read_fails_alone() -> None:
    network = Network()
    passes = SharedPasses(network, BatchLimits())
    bad, good = await behind(network, passes, [[7, 7], [-1, 7]], [[8, 8]])
    passes.close()
    assert good == [[8.0]]
    assert isinstance(bad, list)
    assert bad[0] == [7.0]
    assert isinstance(bad[1], InvalidInputError)


async def test_a_pass_that_breaks_is_told_and_later_ones_go_on() -> None:
    network = Network()
    passes = SharedPasses(network, BatchLimits(max_tokens=8))
    broken, good = await behind(network, passes, [[-2] * 8], [[8] * 4])
    assert isinstance(broken, RuntimeError)
    assert good == [[8.0]]
    assert await passes.values([[5]], end=soon()) == [[5.0]]
    passes.close()


async def test_what_nobody_waits_for_is_not_computed() -> None:
    network = Network()
    passes = SharedPasses(network, BatchLimits())
    first = asyncio.ensure_future(passes.values([[1]], end=soon()))
    await network.begun()
    given_up = asyncio.ensure_future(passes.values([[2]], end=soon()))
    with pytest.raises(DeadlineError):
        await passes.values([[3]], end=soon(0.05))
    given_up.cancel()
    await asyncio.sleep(0.01)
    network.gate.set()
    await first
    assert await passes.values([[4]], end=soon()) == [[4.0]]
    passes.close()
    assert network.passes == [[[1]], [[4]]]


async def test_those_that_wait_when_it_closes_learn_of_it() -> None:
    network = Network()
    passes = SharedPasses(network, BatchLimits())
    waiting = asyncio.ensure_future(passes.values([[1]], end=soon()))
    await network.begun()
    passes.close()
    network.gate.set()
    with pytest.raises(UnavailableError, match="closed"):
        await waiting
    with pytest.raises(UnavailableError):
        await passes.values([[2]], end=soon())


@pytest.mark.parametrize("kind", ["sequence", "token", "bert"])
async def test_b15_a_score_is_the_same_alone_and_in_company(kind: str, tmp_path: Path) -> None:
    network = load_network(ModelSource(str(save_tiny_scorer(tmp_path / "m", kind=kind, pad=2)), "float64", "cpu"))
    limits = BatchLimits(max_tokens=256)
    calls = [[[3 + (k + j) % 40, 2, *range(10, 12 + (5 * k + j) % 50), 2] for j in range(1 + k % 3)] for k in range(24)]
    alone = [[network.values([ids], limits)[0] for ids in call] for call in calls]
    passes = SharedPasses(network, limits)
    found = await asyncio.gather(*(passes.values(call, end=soon()) for call in calls))
    passes.close()
    for together, by_itself in zip(found, alone, strict=True):
        for row, value in zip(together, by_itself, strict=True):
            assert row == pytest.approx(value, abs=1e-9)
