"""The stream over real engines that keep their first weights: no trainer, so what a step takes is all that happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from argosy.config import load
from argosy.controller.context import RunContext
from argosy.controller.ledger import Ledger, read_segment
from argosy.controller.placement import open_placement
from argosy.controller.prepare import data_order
from argosy.controller.producing import Produced, StepRecord
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stream import GroupStream
from argosy.controller.stream_build import build_producer
from argosy.roles.rollout import Rollout

STEP_S = 120.0
"""A guard against a step that never comes."""


@dataclass
class Streamed:
    """A stream under way, and the test that plays its trainer."""

    ctx: RunContext
    rollout: RolloutStage
    stream: GroupStream
    running: asyncio.Future[None]
    """Ends when the source fails, as the run would."""

    async def take(self, step: int) -> StepRecord:
        """What a step trains; its samples are entered as trained, and weights stay as they are."""
        taking = asyncio.create_task(self.stream.produce(step))
        try:
            either: list[asyncio.Future[Any]] = [taking, self.running]
            await asyncio.wait(either, timeout=STEP_S, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done() and self.running.done():
                self.running.result()
            assert taking.done(), f"no step {step} within {STEP_S} s"
        finally:
            taking.cancel()
        produced = taking.result()
        assert isinstance(produced, Produced), produced
        self.ctx.ledger.trained(sorted(produced.record.completions), step)
        self.ctx.ledger.commit_step(step, self.stream.open_groups())
        return produced.record

    def rows(self, step: int) -> list[dict[str, Any]]:
        """The books of a step that was taken."""
        return read_segment(self.ctx.config.run_folder / "ledger", step)

    def states(self, step: int) -> Counter[str]:
        """What became of the samples of a step."""
        return Counter(row["state"] for row in self.rows(step))


@asynccontextmanager
async def streamed(
    arguments: Sequence[str], steps: int, others: Mapping[str, Rollout] | None = None
) -> AsyncIterator[Streamed]:
    """A stream over the rollout servers that the arguments of `argosy train` ask for, in this process, and `others`.

    So many steps can be taken: all their groups may begin at once, as nothing of them is too old.
    """
    config = load(list(arguments)).with_values({
        "argosy.rollout_only": True, "argosy.placement": "inprocess", "argosy.deterministic": False,
        "argosy.max_staleness": steps - 1 or 1,
    })  # fmt: skip
    async with open_placement(config, config.run_folder) as placement:
        ledger = Ledger(config.run_folder / "ledger", 1)
        rollouts = {**placement.services.rollouts, **(others or {})}
        services = replace(placement.services, rollouts=rollouts)
        ctx = RunContext(config, "streamed", 1, services, ledger, placement.membership)
        rollout = RolloutStage(ctx)
        own = [server for name, server in rollouts.items() if name not in (others or {})]
        rollout.version = (await own[0].status()).version
        stream = build_producer(ctx, data_order(config)[0], rollout, lambda *_: None, steps)
        assert isinstance(stream, GroupStream)
        stream.synced(0)
        running = asyncio.ensure_future(placement.race(stream.run()))
        try:
            yield Streamed(ctx, rollout, stream, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            ledger.close()
