"""One run of the controller's own loop over a simulated fleet, on a virtual clock."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import current_bytes, forget_peak, peak_of

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.control import RunControl
from argosy.controller.ledger import Ledger
from argosy.controller.loop import Controller
from argosy.controller.prepare import PreparedRun
from argosy.controller.producing import StepRecord
from argosy.controller.stages.validation import ValidationResult
from argosy.membership.memory import MemoryMembership
from argosy.modeling.tiny import save_tiny_model
from argosy.types.records import Prompt
from simulated_fleet.clock import VirtualClockLoop, run_virtually
from simulated_fleet.profile import StackSamples
from simulated_fleet.server import SimulatedServer
from simulated_fleet.trainer import SimulatedReward, SimulatedTrainer
from simulated_fleet.workload import GROUP, Workload

WARM_UP = 2
"""Steps at the beginning that are left out of the figures, and as many more as the staleness allowed: an asynchronous
run fills its pipeline first. As many as that are left out at the end, when it empties and begins nothing new."""
RUN_S = 2.0
"""Virtual seconds between two runs of tokens, where servers differ."""


@dataclass(frozen=True)
class FleetResult:
    """What one run gave. Virtual seconds, unless they are processor seconds."""

    servers: int
    staleness: int
    steps: int
    samples_per_step: int
    step_s: float
    """Virtual seconds of a step after the warm-up."""
    samples_per_s: float
    trainer_busy: float
    """Share of the virtual time in which the trainer worked."""
    servers_busy: float
    """Share of the virtual time in which a server had samples, mean over servers."""
    staleness_mean: float
    staleness_max: float
    controller_cpu_s: float
    """Processor seconds of a step that the controller took, without the simulated roles."""
    controller_samples_per_s: float
    """Samples that the controller could handle in a second of its processor."""
    controller_load: float
    """Processor seconds of the controller in a virtual second."""
    pause_p99_ms: float
    """Processor time for which the event loop ran one batch of callbacks; the simulated roles' included."""
    pause_max_ms: float
    """The controller's part of the longest such time."""
    collector_max_ms: float
    """The longest full collection of garbage; part of such a time."""
    memory_mb: float
    """By which the process grew in the run, at its peak; the simulated roles included."""
    real_s: float
    real_samples_per_s: float
    """Samples of all steps in a real second, the simulated roles' work included."""
    top: tuple[tuple[str, float], ...]
    """Where the controller's processor time went."""
    longest: tuple[tuple[str, float], ...]
    """The same of the longest pause."""


class _Watch:
    """The loop's Observer."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        self._loop = loop
        self.ends: list[float] = []
        self.cpu: list[float] = []
        self.metrics: list[Mapping[str, float]] = []

    def stage(self, step: int, name: str) -> None:
        pass

    def step_done(self, step: int, metrics: Mapping[str, float], record: StepRecord) -> None:
        self.ends.append(self._loop.time())
        self.cpu.append(time.process_time())
        self.metrics.append(dict(metrics))

    def validated(self, step: int, result: ValidationResult, prompts: Sequence[Prompt]) -> None:
        pass

    def checkpointed(self, step: int, path: Path) -> None:
        pass


def config_of(work: Workload, servers: int, staleness: int, steps: int, folder: Path) -> Config:
    """The run's configuration: GRPO, with the rollout's log-probs as the old ones unless `work` says otherwise."""
    prompts = servers * work.samples_per_server // GROUP
    return Config().with_values({
        "algorithm.adv_estimator": "grpo",
        "algorithm.rollout_correction.bypass_mode": work.log_prob_s == 0,
        "actor_rollout_ref.model.path": str(folder / "model"),
        "actor_rollout_ref.actor.ppo_mini_batch_size": prompts,
        "actor_rollout_ref.rollout.n": GROUP,
        "data.train_files": [str(folder / "train.jsonl")],
        "data.train_batch_size": prompts,
        "data.max_prompt_length": 64,
        "data.max_response_length": work.max_units,
        "trainer.default_local_dir": str(folder / "run"),
        "trainer.total_training_steps": steps,
        "trainer.val_before_train": False,
        "trainer.logger": ["file"],
        "argosy.max_staleness": staleness,
        "argosy.parity.enabled": False,
        "argosy.export_hf": False,
        "argosy.rpc.deadline_s": 1e6,
    })  # fmt: skip


def run_fleet(
    work: Workload, servers: int, staleness: int, counted: int, slowness: float = 1.0, **more: Any
) -> FleetResult:
    """Run it for as many steps as it takes for `counted` to count. `slowness`: The first server is so many times slower
    than the others. `more`: further configuration values, with "__" for dots.

    Raises whatever the loop raises.
    """
    with tempfile.TemporaryDirectory(prefix="argosy-fleet-") as name:
        folder = Path(name)
        save_tiny_model(folder / "model")
        config = config_of(work, servers, staleness, WARM_UP + 2 * staleness + counted, folder)
        config = config.with_values({key.replace("__", "."): value for key, value in more.items()})
        _write_rows(folder / "train.jsonl", config.data.train_batch_size)
        prepared = PreparedRun(config)
        return run_virtually(lambda loop: _run(loop, work, servers, prepared, slowness))


async def _run(
    loop: VirtualClockLoop, work: Workload, servers: int, prepared: PreparedRun, slowness: float
) -> FleetResult:
    # As many slots as samples of a step: the batch is decoded at once, as verl's engines do.
    run_s = None if slowness == 1 else RUN_S
    fleet = {
        name: SimulatedServer(name, work, work.samples_per_server, 1.0 if i else slowness, run_s)
        for i, name in enumerate(f"rollout-{i:04d}" for i in range(servers))
    }
    trainer = SimulatedTrainer(work, servers * work.samples_per_server)
    reward: Any = SimulatedReward(work)
    policy: Any = trainer
    services = Services(rollouts=fleet, reward=reward, policy=policy, reference=None)
    watch = _Watch(loop)
    membership = MemoryMembership()
    gc.collect()
    forget_peak()
    memory_before, real_before = current_bytes(), time.perf_counter()
    leadership = await membership.elect(prepared.run_id, candidate="controller-0")
    with ExitStack() as stack:
        ledger = Ledger(prepared.run_dir / "ledger", leadership.term)
        stack.callback(ledger.close)
        ctx = RunContext(prepared.config, prepared.run_id, leadership.term, services, ledger, membership)
        controller = Controller(ctx, prepared.sampler, [], prepared.store, prepared.total_steps, watch, RunControl())
        del loop.pauses[:]
        profile = stack.enter_context(StackSamples(loop))
        await controller.run()
    await leadership.resign()
    await membership.close()
    return _result(loop, work, servers, prepared, watch, profile, trainer, fleet, memory_before, real_before)


def _result(
    loop: VirtualClockLoop,
    work: Workload,
    servers: int,
    prepared: PreparedRun,
    watch: _Watch,
    profile: StackSamples,
    trainer: SimulatedTrainer,
    fleet: Mapping[str, SimulatedServer],
    memory_before: int,
    real_before: float,
) -> FleetResult:
    count = servers * work.samples_per_server
    staleness = prepared.config.argosy.max_staleness
    first, last = WARM_UP + staleness, len(watch.ends) - staleness
    steps = last - first
    step_s = (watch.ends[last - 1] - watch.ends[first - 1]) / steps
    cpu_s = (watch.cpu[last - 1] - watch.cpu[first - 1]) / steps * profile.controller_share
    pauses, real_s = np.array(loop.pauses), time.perf_counter() - real_before
    told = watch.metrics[first:last]

    def mean(name: str) -> float:
        return float(np.mean([row.get(name, 0.0) for row in told]))

    return FleetResult(
        servers=servers,
        staleness=staleness,
        steps=len(watch.ends),
        samples_per_step=count,
        step_s=step_s,
        samples_per_s=count / step_s,
        trainer_busy=trainer.busy_s / loop.time(),
        servers_busy=float(np.mean([server.busy_s for server in fleet.values()])) / loop.time(),
        staleness_mean=mean("staleness/sample_mean"),
        staleness_max=max((row.get("staleness/max", 0.0) for row in told), default=0.0),
        controller_cpu_s=cpu_s,
        controller_samples_per_s=count / cpu_s,
        controller_load=cpu_s / step_s,
        pause_p99_ms=float(np.quantile(pauses, 0.99)) * 1e3,
        pause_max_ms=profile.longest_s * 1e3,
        collector_max_ms=max(profile.collector_s, default=0.0) * 1e3,
        memory_mb=(peak_of(os.getpid()) - memory_before) / 1e6,
        real_s=real_s,
        real_samples_per_s=count * len(watch.ends) / real_s,
        top=tuple(profile.top(30)),
        longest=tuple(profile.top_of_longest(30)),
    )


def _write_rows(path: Path, count: int) -> None:
    """Prompts of the toy's schema: what they say is of no account."""
    with path.open("w") as file:
        for index in range(count):
            row = {
                "data_source": "simulated",
                "prompt": [{"role": "user", "content": f"question {index}"}],
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": index},
            }
            file.write(json.dumps(row) + "\n")
