from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from argosy.controller.rewards.calls import CallStats
from argosy.controller.rewards.replicas import ReplicaSet
from argosy.rpc.retry import RetryPolicy
from argosy.types.errors import (
    ArgosyError,
    InternalError,
    InvalidInputError,
    MessageTooLargeError,
    OverloadedError,
    UnavailableError,
)
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, RewardCapabilities, Scored, ScoreRequest, ScoreResult

QUICK = RetryPolicy(max_attempts=3, first_backoff_s=0.01, max_backoff_s=0.02)


class Server:
    """Scores 1, or does what it is told first."""

    def __init__(self, *script: Outcome | ArgosyError, delay_s: float = 0.0, **capabilities: object) -> None:
        self.script = list(script)
        self.delay_s = delay_s
        self.known = RewardCapabilities(("*",), **capabilities)  # type: ignore[arg-type]
        self.calls: list[list[ScoreRequest]] = []
        self.times: list[float] = []

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        self.calls.append(list(items))
        self.times.append(time.monotonic())
        await asyncio.sleep(self.delay_s)
        step = self.script.pop(0) if self.script else Scored(1.0)
        if isinstance(step, ArgosyError):
            raise step
        return [ScoreResult(item.sample_id, step) for item in items]

    async def capabilities(self) -> RewardCapabilities:
        return self.known


def items(count: int) -> list[ScoreRequest]:
    return [ScoreRequest(SampleId(0, position, 0), "toy", "", str(position), None) for position in range(count)]


def replicas(*servers: Server, sample_attempts: int = 2) -> ReplicaSet:
    made = ReplicaSet("numbers", policy=QUICK, sample_attempts=sample_attempts)
    for number, server in enumerate(servers):
        made.add(f"numbers-{number}", server)
    return made


async def outcomes(made: ReplicaSet, count: int = 3, deadline_s: float = 10.0) -> list[Outcome]:
    return list((await made.score(items(count), deadline_s=deadline_s)).values())


async def test_batches_are_split_and_spread_over_the_least_loaded() -> None:
    servers = [Server(delay_s=0.02, max_batch_size=4) for _ in range(2)]
    assert await outcomes(replicas(*servers), 16) == [Scored(1.0)] * 16
    assert [len(call) for server in servers for call in server.calls] == [4] * 4
    assert [len(server.calls) for server in servers] == [2, 2]


async def test_f1_a_dead_replicas_items_go_to_another_at_once() -> None:
    dead, alive = Server(*[UnavailableError("gone")] * 9), Server()
    made = replicas(dead, alive)
    for _ in range(4):
        assert await outcomes(made) == [Scored(1.0)] * 3
    assert len(dead.calls) == 1, "it is left alone for a while"


async def test_all_dead_is_failed_with_the_cause_after_bounded_tries() -> None:
    dead = Server(*[UnavailableError("127.0.0.1:1 can't be reached")] * 99)
    stats = CallStats()
    found = await replicas(dead, sample_attempts=2).score(items(2), deadline_s=10, stats=stats)
    assert list(found.values()) == [Failed("unavailable", "127.0.0.1:1 can't be reached")] * 2
    assert len(dead.calls) == QUICK.max_attempts * 2
    assert (stats.retried_calls, stats.retried_samples, stats.calls) == (4, 2, 6)


class Away(Server):
    """One that can't be reached for some questions."""

    away = 0

    async def capabilities(self) -> RewardCapabilities:
        if self.away > 0:
            self.away -= 1
            raise UnavailableError("connection refused")
        return await super().capabilities()


@pytest.mark.parametrize(("answered", "outage_s", "outcome"), [
    (True, 30.0, Scored(1.0)), (True, 0.0, "unavailable"), (False, 30.0, "unavailable"),
])  # fmt: skip
async def test_f1_a_short_outage_of_all_servers_costs_no_sample(
    monkeypatch: pytest.MonkeyPatch, answered: bool, outage_s: float, outcome: Outcome | str
) -> None:
    """Both reward servers of two were killed, and were there again after more tries than a call has. One that has never
    answered, or is away for long, costs each call its tries only."""
    monkeypatch.setattr("argosy.controller.rewards.replicas._OUTAGE_S", outage_s)
    server = Away()
    made = replicas(server, sample_attempts=1)
    if answered:
        assert await outcomes(made) == [Scored(1.0)] * 3
    else:
        await made.capabilities()
    server.script, server.away = [UnavailableError("the connection was closed")], 3 * QUICK.max_attempts
    found = await outcomes(made)
    assert [one.reason if isinstance(one, Failed) else one for one in found] == [outcome] * 3


async def test_an_overloaded_server_is_asked_again_when_it_said() -> None:
    busy = Server(OverloadedError("full", retry_after_s=0.3))
    assert await outcomes(replicas(busy)) == [Scored(1.0)] * 3
    assert busy.times[1] - busy.times[0] >= 0.3


async def test_g11_a_failed_sample_is_tried_elsewhere_then_given_up() -> None:
    boom = Failed("exception", "boom")
    bad, good = Server(*[boom] * 9), Server()
    assert await outcomes(replicas(bad, good)) == [Scored(1.0)] * 3
    assert [[len(call) for call in server.calls] for server in (bad, good)] == [[3], [1, 1, 1]], "each alone"
    assert await outcomes(replicas(Server(*[boom] * 9))) == [boom] * 3
    alone = Server(boom)
    assert await outcomes(replicas(alone, sample_attempts=1)) == [boom] * 3
    assert len(alone.calls) == 1


@pytest.mark.parametrize(
    "reason",
    [
        "unknown_data_source", "bad_ground_truth", "bad_options", "bad_request", "too_large", "masked",
        "language_unavailable", "sandbox_unavailable", "not_installed",
    ],
)  # fmt: skip
async def test_what_a_repeat_cannot_mend_is_not_repeated(reason: str) -> None:
    server = Server(Failed(reason, ""))
    assert await outcomes(replicas(server)) == [Failed(reason, "")] * 3
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("error", "reason", "calls"),
    [
        (InternalError("KeyError: x"), "service_error", 2),  # one more try of the samples
        (InvalidInputError("no such field"), "refused", 1),
        (MessageTooLargeError("9 MB, the limit is 4 MB"), "too_large", 1),
    ],
)
async def test_g11_what_a_call_raises_is_failed_never_zero(error: ArgosyError, reason: str, calls: int) -> None:
    server = Server(*[error] * 9)
    assert await outcomes(replicas(server), 1) == [Failed(reason, error.message)]
    assert len(server.calls) == calls


async def test_g11_one_sample_that_breaks_the_server_costs_only_itself() -> None:
    class Brittle(Server):
        async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
            if any(item.response_text == "1" for item in items):
                raise InternalError("KeyError: 1")
            return await super().score(items, deadline_s=deadline_s)

    assert await outcomes(replicas(Brittle())) == [Scored(1.0), Failed("service_error", "KeyError: 1"), Scored(1.0)]


@pytest.mark.parametrize(
    "fault",
    [
        Failed("exception", "boom"), Failed("timeout", "slow"), Failed("crashed", "signal 9"), Failed("refused", "400"),
        InvalidInputError("no such field"),
    ],
)  # fmt: skip
async def test_g11_one_sample_that_breaks_a_whole_batch_costs_only_itself(fault: Failed | InvalidInputError) -> None:
    """A function that takes a batch says the same of all its samples when one of them breaks it."""

    class Together(Server):
        async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
            self.calls.append(list(items))
            if all(item.response_text != "1" for item in items):
                return [ScoreResult(item.sample_id, Scored(1.0)) for item in items]
            if isinstance(fault, ArgosyError):
                raise fault
            return [ScoreResult(item.sample_id, fault) for item in items]

    server = Together()
    expected = Failed("refused", fault.message) if isinstance(fault, ArgosyError) else fault
    assert await outcomes(replicas(server)) == [Scored(1.0), expected, Scored(1.0)]
    assert [len(call) for call in server.calls] == [3, 1, 1, 1]


async def test_g11_a_scorer_of_this_process_with_a_defect_is_failed() -> None:
    class Broken(Server):
        async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
            raise KeyError("gold")

    assert await outcomes(replicas(Broken()), 2) == [Failed("service_error", "KeyError: 'gold'")] * 2


@pytest.mark.parametrize(
    "other", [{"repeat_forbidden": True}, {"version": "2"}, {"needs_messages": True}, {"needs_token_ids": True}]
)
async def test_a_server_that_is_no_replica_gets_no_sample(
    other: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    own: dict[str, Any] = {"version": "1", "max_batch_size": 1}
    first, second, third = Server(**own), Server(**{**own, **other}), Server(**own)
    for server in (first, second, third):
        server.delay_s = 0.005
    made = replicas(first)
    await outcomes(made)
    made.add("numbers-8", second)
    made.add("numbers-9", third)
    for _ in range(4):
        assert await outcomes(made) == [Scored(1.0)] * 3
    assert not second.calls
    assert third.calls
    assert made.keys == ("numbers-0", "numbers-9")
    assert "numbers-8" in caplog.text
    made.remove("numbers-0")
    made.remove("numbers-9")
    made.add("numbers-8", second)
    [found] = await outcomes(made, 1)
    assert "has no server (numbers-8 " in str(found)


async def test_a_server_that_went_away_is_asked_again_what_it_is() -> None:
    server = Server(UnavailableError("gone"), version="1")
    made = replicas(server, Server(version="1"))
    await outcomes(made)
    server.known = RewardCapabilities(("*",), version="2")
    made.remove("numbers-1")
    [found] = await outcomes(made, 1)
    assert "numbers-0 has another version (2) than" in str(found)
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    "first",
    [
        UnavailableError("gone"), Failed("exception", "boom"), OverloadedError("full"),
        MessageTooLargeError("5 MB, the limit is 4 MB"), InternalError("KeyError: x"), InvalidInputError("no"),
    ],
)  # fmt: skip
async def test_nothing_is_sent_twice_where_repeating_is_forbidden(first: Outcome | ArgosyError) -> None:
    servers = [Server(first, repeat_forbidden=True), Server(repeat_forbidden=True)]
    found = await outcomes(replicas(*servers))
    assert all(isinstance(outcome, Failed) for outcome in found)
    assert sum(len(server.calls) for server in servers) == 1


async def test_the_deadline_bounds_all_tries_together() -> None:
    slow = Server(delay_s=60)
    started = time.monotonic()
    found = await outcomes(replicas(slow), deadline_s=0.3)
    assert time.monotonic() - started < 10  # a hang guard
    assert {type(outcome) for outcome in found} == {Failed}
    assert isinstance(found[0], Failed)
    assert found[0].reason == "timeout"


async def test_a_hanging_replica_leaves_time_for_another() -> None:
    assert await outcomes(replicas(Server(delay_s=60), Server()), deadline_s=1.0) == [Scored(1.0)] * 3


async def test_replicas_join_and_leave_while_samples_are_scored() -> None:
    first, second = Server(delay_s=0.01), Server(delay_s=0.01)
    made = replicas(first)
    scored: Counter[str] = Counter()

    async def work(act: dict[int, Callable[[], None]]) -> None:
        for turn in range(30):
            act.get(turn, lambda: None)()
            scored.update(type(outcome).__name__ for outcome in await outcomes(made))

    await work({5: lambda: made.add("numbers-9", second), 15: lambda: made.remove("numbers-0")})
    assert scored == {"Scored": 90}
    assert second.calls
    assert len(first.calls) <= 15


async def test_without_any_server_samples_are_failed() -> None:
    made = ReplicaSet("numbers", policy=QUICK)
    assert await outcomes(made) == [Failed("unavailable", "the reward service 'numbers' has no server")] * 3


@pytest.mark.parametrize(("tokens", "fits"), [((), True), ((0.5, 0.5), True), ((0.5,), False), ((0.1,) * 3, False)])
async def test_g2_another_number_of_token_scores_is_failed(tokens: tuple[float, ...], fits: bool) -> None:
    item = ScoreRequest(SampleId(0, 0, 0), "toy", "", "x", None, response_ids=(7, 8))
    made = replicas(Server(*[Scored(1.0, {}, tokens)] * 2))
    [found] = (await made.score([item], deadline_s=5)).values()
    assert isinstance(found, Scored) is fits
    assert fits or "token scores for a response of 2 tokens" in str(found)
