"""One fleet of real services for many short runs: each case gets its own run, the same starting weights, its own loop.

Starting five processes costs seconds; resetting a tiny trainer from a checkpoint costs milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from argosy.config import Config, load, validate
from argosy.controller.context import RunContext, Services
from argosy.controller.control import RunControl
from argosy.controller.ledger import Ledger
from argosy.controller.loop import Controller
from argosy.controller.placement import Placement, open_placement
from argosy.controller.prepare import PreparedRun
from argosy.controller.producing import StepRecord
from argosy.controller.stages.validation import ValidationResult
from argosy.roles.policy import Training
from argosy.types.records import Mutation, Prompt, request_id_of


@dataclass
class Recorder:
    """The loop's observer: keeps each step's metrics."""

    rows: list[dict[str, float]] = field(default_factory=list)

    def stage(self, step: int, name: str) -> None:
        pass

    def step_done(self, step: int, metrics: Mapping[str, float], record: StepRecord) -> None:
        self.rows.append(dict(metrics))

    def validated(self, step: int, result: ValidationResult, prompts: Sequence[Prompt]) -> None:
        pass

    def checkpointed(self, step: int, path: Path) -> None:
        pass


class SharedFleet:
    """Services that are up, and a checkpoint of their first weights."""

    def __init__(self, base: Sequence[str], folder: Path, placement: Placement) -> None:
        self._base = base
        self.folder = folder
        self._placement = placement
        self._runs = 0

    async def train(self, *overrides: str, recipe: Path | None = None) -> list[dict[str, float]]:
        """The metrics of each step of a run of its own, from the first weights on."""
        self._runs += 1
        name = f"case-{self._runs}"
        words = [*self._base, *overrides, f"trainer.default_local_dir={self.folder}/{name}"]
        config = load(words, [] if recipe is None else [recipe])
        validate(config)
        prepared = PreparedRun(config)
        seen = Recorder()
        membership = self._placement.membership
        async with AsyncExitStack() as stack:
            leadership = await membership.elect(prepared.run_id, candidate="controller-0")
            stack.push_async_callback(leadership.resign)
            ledger = Ledger(prepared.run_dir / "ledger", leadership.term)
            stack.callback(ledger.close)
            services = self._services(prepared.config)
            ctx = RunContext(prepared.config, prepared.run_id, leadership.term, services, ledger, membership)
            ctx.lineage = name  # weights of two cases never share a version
            await self._reset(ctx)
            controller = Controller(
                ctx, prepared.sampler, prepared.held_out, prepared.store, prepared.total_steps, seen, RunControl()
            )
            await self._placement.race(controller.run())
        return seen.rows

    def _services(self, config: Config) -> Services:
        """What a run with this configuration would have started."""
        return dataclasses.replace(
            self._placement.services,
            reference=self._placement.services.reference if config.needs_reference else None,
            critic=self._placement.services.critic if config.needs_critic else None,
        )

    async def _reset(self, ctx: RunContext) -> None:
        for name, trainer in _trainers(ctx.services).items():
            await trainer.load_checkpoint(str(self.folder / "first" / name), ctx.mutation("reset", name))

    async def save_first(self) -> None:
        """Keep the weights that every case starts from."""
        for name, trainer in _trainers(self._placement.services).items():
            await trainer.save_checkpoint(str(self.folder / "first" / name), _mutation(f"save-{name}"))


def _trainers(services: Services) -> dict[str, Training]:
    trainers: dict[str, Training] = {"actor": services.policy}
    return trainers if services.critic is None else trainers | {"critic": services.critic}


def _mutation(name: str) -> Mutation:
    return Mutation("shared-fleet", 1, request_id_of("shared-fleet", name), 60.0, None)


@asynccontextmanager
async def shared_fleet(base: Sequence[str], *services: str, folder: Path) -> AsyncIterator[SharedFleet]:
    """Start what `base` with `services` (overrides that ask for a reference, a critic …) needs, as real processes."""
    config = load([*base, *services, f"trainer.default_local_dir={folder}/fleet"])
    validate(config)
    async with open_placement(config, folder / "fleet") as placement:
        fleet = SharedFleet(base, folder, placement)
        await fleet.save_first()
        yield fleet
