from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger
from argosy.controller.stages.parity import (
    BFLOAT16,
    FLOAT32,
    PROMPT_COUNT,
    SAMPLE_COUNT,
    ParityGate,
    bound_of,
    canary_requests,
    judge,
)
from argosy.controller.stages.rollout import RolloutStage
from argosy.membership.memory import MemoryMembership
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import (
    ArgosyError,
    CorruptDataError,
    DeadlineError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import GroupId, PolicyVersion
from argosy.types.records import Completion, GenerateRequest, Prompt, RolloutStatus
from unit.config.effects import recorded as services
from unit.config.effects.recorded import run_recorded

PROMPTS = [Prompt(GroupId(0, i), tuple(range(5, 25 + i)), "toy", "") for i in range(4)]


@pytest.mark.parametrize(
    ("gaps", "right"),
    [
        ([0.0, 9e-5], False),  # one token within, the mean beyond: a small error everywhere is no rounding
        ([0.0] * 9 + [9e-5], True),
        ([0.0] * 20 + [2e-4], False),
        ([0.0, float("nan")], False),
        ([float("inf")], False),
    ],
)
def test_both_bounds_hold_and_a_nan_never_passes(gaps: list[float], right: bool) -> None:
    if right:
        judge("rollout-3", np.array(gaps), FLOAT32)
    else:
        with pytest.raises(CorruptDataError, match="rollout-3"):
            judge("rollout-3", np.array(gaps), FLOAT32)


@pytest.mark.parametrize("path", ["argosy.rollout.dtype", "actor_rollout_ref.actor.fsdp_config.dtype"])
def test_the_bound_follows_the_coarser_side(path: str) -> None:
    exact = Config().with_values({
        "argosy.rollout.dtype": "float32", "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
    })  # fmt: skip
    assert bound_of(exact) == FLOAT32
    assert bound_of(exact.with_values({path: "bfloat16"})) == BFLOAT16


def test_the_canary_draws_from_the_full_distribution_at_the_training_temperature() -> None:
    config = Config().with_values({
        "actor_rollout_ref.rollout.top_p": 0.5, "actor_rollout_ref.rollout.top_k": 3,
        "actor_rollout_ref.rollout.repetition_penalty": 1.3, "actor_rollout_ref.rollout.temperature": 0.7,
        "argosy.rollout.min_p": 0.2,
    })  # fmt: skip
    requests = canary_requests(config, PROMPTS)
    wanted = [prompt.token_ids for prompt in PROMPTS[:PROMPT_COUNT] for _ in range(SAMPLE_COUNT)]
    assert [request.prompt_ids for request in requests] == wanted
    assert len({request.key for request in requests}) == len(requests)
    for request in requests:
        params = request.params
        assert (params.top_p, params.top_k, params.min_p, params.repetition_penalty) == (1.0, -1, 0.0, 1.0)
        assert params.temperature == 0.7
        assert request.purpose == "warmup", "its noise and its keys are its own"


def test_the_canary_stays_within_the_context() -> None:
    config = Config().with_values({"actor_rollout_ref.rollout.max_model_len": 21})
    assert [request.params.max_tokens for request in canary_requests(config, PROMPTS)] == [1] * SAMPLE_COUNT


class Away:
    """Answers whoever asks how it is, and samples nothing."""

    def __init__(self, error: ArgosyError) -> None:
        self._error = error

    async def status(self) -> RolloutStatus:
        return RolloutStatus(None, "ready", 0, 0, 4, 0, 0, 64)

    async def generate(self, requests: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        raise self._error
        yield


@pytest.mark.parametrize("kind", [UnavailableError, DeadlineError, OverloadedError, StateError])
async def test_a_member_that_can_not_answer_is_left_to_generation(tmp_path: Path, kind: type[ArgosyError]) -> None:
    roles = Services({"rollout-0": cast(Any, Away(kind("not now")))}, cast(Any, None), cast(Any, None), None)
    ctx = RunContext(Config(), "run", 1, roles, Ledger(tmp_path / "ledger", 1), MemoryMembership())
    assert await ParityGate(ctx, RolloutStage(ctx), PROMPTS).check(1) == {}


async def test_a_member_that_is_lost_before_its_check_is_held_no_longer(tmp_path: Path) -> None:
    """It may be born again under its name, and be the only one."""
    lost: set[str] = set()
    servers = cast(Any, {name: Away(UnavailableError("not now")) for name in ("rollout-0", "rollout-1")})
    roles = Services(servers, cast(Any, None), cast(Any, None), None, lost=lost)
    ctx = RunContext(Config(), "run", 1, roles, Ledger(tmp_path / "ledger", 1), MemoryMembership())
    stage = RolloutStage(ctx)
    gate = ParityGate(ctx, stage, PROMPTS)
    gate.expect()
    places = stage.singles.places
    assert [places.is_held(name) for name in servers] == [True, True]
    lost.add("rollout-1")
    await gate.check(1)
    assert [places.is_held(name) for name in servers] == [False, False]


async def test_colocated_the_trainer_computes_only_while_the_servers_sleep(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary's log-probs too: the servers sample it, sleep with their weights, and wake when the trainer is off."""
    generate, compute = services._Rollout.generate, services._LogProbs.compute_log_probs

    async def noted(
        self: services._Rollout, requests: Sequence[GenerateRequest], *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        self._recorded.turns.append(f"sample {requests[0].purpose}")
        async for completion in generate(self, requests, deadline_s=deadline_s):
            yield completion

    async def computed(self: services._LogProbs, batch: TrajectoryBatch, *args: Any, **named: Any) -> TrajectoryBatch:
        self._recorded.turns.append("canary" if len(batch) == PROMPT_COUNT * SAMPLE_COUNT else "other")
        return await compute(self, batch, *args, **named)

    monkeypatch.setattr(services._Rollout, "generate", noted)
    monkeypatch.setattr(services._LogProbs, "compute_log_probs", computed)
    job = small_job.with_values({
        "argosy.colocated": True, "argosy.sleep_level": 2, "argosy.parity.enabled": True,
        "trainer.total_training_steps": 2, "actor_rollout_ref.actor.use_kl_loss": False,
    })  # fmt: skip
    turns = (await run_recorded(job, monkeypatch)).turns
    gate = ["sample warmup", "sleep 1", "canary", "offload", "wake"]
    step = ["offload", "sample train", "sleep 2", "update", "offload", "wake", *gate]
    assert turns == [*gate, *step, *step]


async def test_beside_training_no_server_gets_samples_before_it_has_answered_the_canary(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step waits for the check: it must not stand behind samples that take as long as a step."""
    generate, finish = services._Rollout.generate, services._Rollout.finish_weight_update
    status = services._Rollout.status
    turns: list[str] = []

    async def noted(
        self: services._Rollout, requests: Sequence[GenerateRequest], **named: Any
    ) -> AsyncIterator[Completion]:
        turns.append(requests[0].purpose)
        async for completion in generate(self, requests, **named):
            yield completion

    async def swapped(self: services._Rollout, *args: Any) -> PolicyVersion:
        turns.append("swap")
        return await finish(self, *args)

    async def slow(self: services._Rollout) -> RolloutStatus:
        await asyncio.sleep(0.02)  # the check asks first what the server is: samples would be there before it
        return await status(self)

    monkeypatch.setattr(services._Rollout, "generate", noted)
    monkeypatch.setattr(services._Rollout, "status", slow)
    monkeypatch.setattr(services._Rollout, "finish_weight_update", swapped)
    job = small_job.with_values({"argosy.max_staleness": 1, "argosy.parity.enabled": True})
    await run_recorded(job, monkeypatch)
    swaps = [place for place, turn in enumerate(turns) if turn == "swap"]
    assert len(swaps) == 4
    assert {turns[place + 1] for place in swaps} == {"warmup"}
    assert turns.count("train") == 48, "and they get all of them after it"
