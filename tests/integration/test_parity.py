"""The parity gate over real cores: an engine that holds other weights than the trainer stops the run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from argosy.config import load, validate
from argosy.controller.context import RunContext
from argosy.controller.ledger import Ledger
from argosy.controller.placement import open_placement
from argosy.controller.prepare import PreparedRun
from argosy.controller.stages.parity import FLOAT32, PROMPT_COUNT, ParityGate
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sync import publish_and_sync
from argosy.types.errors import CorruptDataError
from argosy.types.records import UpdateConfig
from support.toy import ToyJob
from support.training import grouped_batch

pytestmark = pytest.mark.xdist_group("parity")


class Synced:
    """Real cores in this process, the engine on the trainer's first weights."""

    def __init__(self, ctx: RunContext, prepared: PreparedRun) -> None:
        self.ctx = ctx
        self.rollout = RolloutStage(ctx)
        self.gate = ParityGate(ctx, self.rollout, prepared.sampler.first_prompts(PROMPT_COUNT))

    async def train(self, step: int) -> None:
        """One optimizer step that the engine is not told of."""
        from argosy.controller.stages.update import update_config

        config: UpdateConfig = update_config(self.ctx.config)
        mutation = self.ctx.mutation("update", step, expected_step=step - 1)
        await self.ctx.services.policy.update(grouped_batch(), config, mutation)


@pytest.fixture
async def synced(toy_job: ToyJob) -> AsyncIterator[Synced]:
    words = toy_job.command(
        "parity", "argosy.placement=inprocess", "actor_rollout_ref.actor.optim.lr=0.05",
        "actor_rollout_ref.actor.use_kl_loss=False", "actor_rollout_ref.rollout.top_k=5",
    )  # fmt: skip
    config = load(words[words.index("train") + 1 :])
    validate(config)
    prepared = PreparedRun(config)
    async with AsyncExitStack() as stack:
        placement = await stack.enter_async_context(open_placement(config, config.run_folder))
        leadership = await placement.membership.elect(prepared.run_id, candidate="controller-0")
        ledger = Ledger(config.run_folder / "ledger", leadership.term)
        stack.callback(ledger.close)
        ctx = RunContext(config, prepared.run_id, leadership.term, placement.services, ledger, placement.membership)
        made = Synced(ctx, prepared)
        await publish_and_sync(ctx, made.rollout, 0)
        yield made


async def test_an_engine_that_missed_a_step_stops_the_run(synced: Synced) -> None:
    metrics = await synced.gate.check(0)
    assert 0 <= metrics["parity/log_prob_diff_max"] <= FLOAT32.largest
    await synced.train(1)
    with pytest.raises(CorruptDataError, match="rollout-0 does not compute what the trainer computes"):
        await synced.gate.check(1)
    await publish_and_sync(synced.ctx, synced.rollout, 1)
    again = await synced.gate.check(1)
    assert 0 <= again["parity/log_prob_diff_max"] <= FLOAT32.largest


async def test_a_check_that_was_begun_is_settled_once_and_raises_then(synced: Synced) -> None:
    assert await synced.gate.settle() == {}
    await synced.train(1)
    synced.gate.begin(1)
    with pytest.raises(CorruptDataError, match="rollout-0"):
        await synced.gate.settle()
    assert await synced.gate.settle() == {}
