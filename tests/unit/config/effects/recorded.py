"""The controller's whole loop over services that answer at once and remember what they were asked.

What the real services make of their own keys is tested on their cores; here it is what the controller makes of its own.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from argosy.config import Config
from argosy.controller import run as run_module
from argosy.controller.context import Services
from argosy.controller.control import RunControl
from argosy.controller.loggers.jsonl import read_metrics
from argosy.controller.placement import Placement
from argosy.controller.prepare import PreparedRun
from argosy.controller.report import RunReport
from argosy.controller.run import Run
from argosy.membership.memory import MemoryMembership
from argosy.telemetry.traces import Tracing
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import (
    Completion,
    Failed,
    FinishReason,
    GenerateRequest,
    Mutation,
    Outcome,
    RewardCapabilities,
    RolloutStatus,
    Scored,
    ScoreRequest,
    ScoreResult,
    StepResult,
    TokenRun,
    TrainerStatus,
    TransferOffer,
    UpdateConfig,
    VersionRun,
    WeightsForm,
    WeightsManifest,
)

VERSION = PolicyVersion("l0", 0, "00" * 32)


@dataclass
class Recorded:
    """What the services were asked, and what the run left behind."""

    folder: Path
    screen: str = ""
    report: RunReport | None = None
    generated: list[list[GenerateRequest]] = field(default_factory=list)
    updates: list[UpdateConfig] = field(default_factory=list)
    batches: list[TrajectoryBatch] = field(default_factory=list)
    temperatures: dict[str, list[float]] = field(default_factory=lambda: {"policy": [], "reference": []})
    mutations: list[Mutation] = field(default_factory=list)
    exported: list[str] = field(default_factory=list)
    critic_updates: list[UpdateConfig] = field(default_factory=list)
    critic_batches: list[TrajectoryBatch] = field(default_factory=list)
    background_saves: list[bool] = field(default_factory=list)
    transports: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    """Updates and naps in their order, where rollout sleeps at all."""
    rollout_host: str = "one"
    """The trainer's is "one"."""
    failing: int = 0
    """Samples of each call whose scoring fails."""
    outcome: Callable[[SampleId], Outcome] = lambda sample: Scored(float(sample.k))
    """What the others are scored."""

    def requests(self, purpose: str) -> list[GenerateRequest]:
        """All of one purpose."""
        return [request for call in self.generated for request in call if request.purpose == purpose]

    def calls(self, purpose: str) -> list[int]:
        """Requests in each call of one purpose."""
        return [len(call) for call in self.generated if call[0].purpose == purpose]

    def metrics(self, name: str) -> list[float]:
        """A metric's values over the steps that have it."""
        return [row[name] for row in read_metrics(self.folder / "metrics.jsonl") if name in row]

    @property
    def checkpoints(self) -> list[str]:
        """Names of the checkpoint folders."""
        return sorted(path.name for path in self.folder.glob("global_step_*"))


class _Rollout:
    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._manifest = WeightsManifest(VERSION, ())

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        deadline_s: float,
        on_run: Callable[[TokenRun], None] | None = None,
    ) -> AsyncIterator[Completion]:
        self._recorded.generated.append(list(requests))
        for request in requests:
            ids = tuple(range(5, 5 + min(request.params.max_tokens, 3 + request.sample_id.k)))
            version = VersionRun(self._manifest.version, len(ids))
            yield Completion(
                request.sample_id, ids, tuple(-0.5 for _ in ids), (version,), FinishReason.STOP, "text",
                purpose=request.purpose,
            )  # fmt: skip

    async def status(self) -> RolloutStatus:
        host = self._recorded.rollout_host
        can = {"sleep_levels": "1,2", "host_id": host, "transports": "shared_memory,stream"}
        return RolloutStatus(self._manifest.version, "ready", 0, 0, 8, 0, 0, 64, capabilities=can)

    async def sleep(self, level: int, ctx: Mutation) -> None:
        self._recorded.turns.append(f"sleep {level}")

    async def wake(self, ctx: Mutation) -> None:
        self._recorded.turns.append("wake")

    async def init_weight_transfer(self, transport: str, ctx: Mutation) -> None:
        pass

    async def start_weight_update(self, sync_id: str, manifest: WeightsManifest, ctx: Mutation) -> None:
        self._manifest = manifest

    async def update_weights(
        self, sync_id: str, source: object, ctx: Mutation, offer: TransferOffer | None = None
    ) -> int:
        return 0

    async def finish_weight_update(self, sync_id: str, ctx: Mutation) -> PolicyVersion:
        return self._manifest.version


class _Reward:
    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        def outcome(place: int, sample: SampleId) -> Outcome:
            return Failed("timeout", "") if place < self._recorded.failing else self._recorded.outcome(sample)

        return [ScoreResult(item.sample_id, outcome(i, item.sample_id)) for i, item in enumerate(items)]

    async def capabilities(self) -> RewardCapabilities:
        return RewardCapabilities(("*",))


class _LogProbs:
    """The reference, and the part of the policy that is like it."""

    def __init__(self, recorded: Recorded, name: str, value: float) -> None:
        self._recorded = recorded
        self._name = name
        self._value = value

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        self._recorded.temperatures[self._name].append(temperature)
        ids = batch.ragged("response_ids")
        for column in columns:
            value = self._value if column == "log_probs" else 0.5
            batch = batch.with_column(column, Ragged(np.full(len(ids.values), value), ids.offsets))
        return batch


class _Training:
    """What policy and critic have in common."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._step = 0

    async def save_checkpoint(self, path: str, ctx: Mutation, *, background: bool = False) -> Sequence[str]:
        self._recorded.background_saves.append(background)
        (Path(path) / "step.json").write_text(json.dumps(self._step))
        return ["step.json"]

    async def finish_save(self, path: str, *, deadline_s: float) -> Sequence[str]:
        return ["step.json"]

    async def load_checkpoint(self, path: str, ctx: Mutation) -> TrainerStatus:
        self._step = json.loads((Path(path) / "step.json").read_text())
        return TrainerStatus(self._step, None, 1)

    async def offload(self, ctx: Mutation) -> None:
        self._recorded.turns.append("offload")

    async def export_hf(self, path: str, ctx: Mutation) -> Sequence[str]:
        self._recorded.exported.append(path)
        return []


class _Critic(_Training):
    """Says 0.25 to everything."""

    async def compute_values(self, batch: TrajectoryBatch, *, deadline_s: float) -> TrajectoryBatch:
        ids = batch.ragged("response_ids")
        return batch.with_column("values", Ragged(np.full(len(ids.values), 0.25, np.float32), ids.offsets))

    async def update(self, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> StepResult:
        self._recorded.critic_updates.append(config)
        self._recorded.critic_batches.append(batch)
        self._step += 1
        return StepResult(self._step, {"critic/grad_norm": 1.0})


class _Policy(_Training, _LogProbs):
    def __init__(self, recorded: Recorded, log_prob: float) -> None:
        _Training.__init__(self, recorded)
        _LogProbs.__init__(self, recorded, "policy", log_prob)

    async def update(self, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> StepResult:
        self._recorded.updates.append(config)
        self._recorded.batches.append(batch)
        self._recorded.mutations.append(ctx)
        if self._recorded.turns:
            self._recorded.turns.append("update")
        self._step += 1
        return StepResult(self._step, {"actor/grad_norm": 1.0})

    async def publish_weights(
        self, lineage: str, step: int, ctx: Mutation, *, form: WeightsForm = WeightsForm.MERGED
    ) -> WeightsManifest:
        return WeightsManifest(PolicyVersion(lineage, step, f"{step:064x}"), ())

    def weight_source(self) -> None:
        return None

    async def status(self) -> TrainerStatus:
        return TrainerStatus(self._step, None, 1, host_id="one", transports=("stream", "shared_memory"))

    async def open_transfer(
        self, transport: str, sync_id: str, receiver_count: int, ctx: Mutation
    ) -> tuple[TransferOffer, ...]:
        self._recorded.transports.append(transport)
        version = PolicyVersion("l0", 0, "0" * 64)
        return (TransferOffer(transport, sync_id, version, ""),) * receiver_count

    async def close_transfer(self, sync_id: str, ctx: Mutation) -> None:
        pass


async def run_recorded(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    *,
    failing: int = 0,
    outcome: Callable[[SampleId], Outcome] | None = None,
    policy_log_prob: float = -0.5,
    rollout_host: str = "one",
) -> Recorded:
    """Run `config` to its end; every error of the run is raised.

    `policy_log_prob` is the trainer's of every token; the rollout's is -0.5.
    """
    recorded = Recorded(config.run_folder, failing=failing, rollout_host=rollout_host)
    recorded.outcome = outcome or recorded.outcome
    services: Any = Services(
        rollouts={"rollout-0": _Rollout(recorded)},  # type: ignore[dict-item]
        reward=_Reward(recorded),
        policy=_Policy(recorded, policy_log_prob),  # type: ignore[arg-type]
        reference=_LogProbs(recorded, "reference", -0.9) if config.needs_reference else None,
        critic=_Critic(recorded) if config.needs_critic else None,  # type: ignore[arg-type]
    )

    async def just_run(work: Any, *, setbacks: bool = False) -> Any:
        return await work

    @asynccontextmanager
    async def open_recorded(*_: object) -> AsyncIterator[Placement]:
        membership = MemoryMembership()
        yield Placement(services, membership, just_run)
        await membership.close()

    monkeypatch.setattr(run_module, "open_placement", open_recorded)
    monkeypatch.setattr(run_module, "write_report", lambda *_: None)  # draws a picture: a second
    text = io.StringIO()
    prepared = PreparedRun(config)
    run = Run(prepared, Console(file=text, width=200), Tracing(None))
    recorded.report = await run.execute(RunControl(prepared.run_id, prepared.total_steps))
    recorded.screen = text.getvalue()
    return recorded
