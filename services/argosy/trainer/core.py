"""The trainer core: counters, fencing by step, the walk over mini-batches. Implements `argosy.roles.policy.Policy`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from argosy.modeling.compute_thread import ComputeThread
from argosy.trainer import checkpoint
from argosy.trainer.answers import Answers
from argosy.trainer.backends import Backend
from argosy.trainer.export import export_hf
from argosy.trainer.objective import check_loss, global_normalizer
from argosy.trainer.optimizer import StepOutcome
from argosy.trainer.options import TrainerOptions
from argosy.trainer.source import PublishedWeights
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError, StateError, StepMismatchError
from argosy.types.records import (
    GlobalNormalizer,
    LossConfig,
    Mutation,
    StepResult,
    TrainerStatus,
    UpdateConfig,
    WeightsManifest,
)
from argosy.weightsync import Snapshot

logger = logging.getLogger(__name__)

R = TypeVar("R")
Metrics = dict[str, float]


class Trainer:
    """One policy in training.

    Everything that touches the model runs in one compute thread, in order of arrival; the event loop stays free. A
    mutation is done once per request id, and only at its expected step.
    """

    def __init__(self, options: TrainerOptions, make_backend: Callable[[TrainerOptions], Backend]) -> None:
        self._options = options
        self._thread = ComputeThread("trainer", threads=options.threads)
        self._answers = Answers()
        self._published = PublishedWeights()
        self._backend = make_backend(options)
        self._step = 0
        self._revision = 0  # counts changes of the weights
        self._published_revision = -1
        self._trained_tokens = 0.0  # of the pending gradient
        self._damage = ""  # why nothing but load_checkpoint is allowed

    def close(self) -> None:
        """Let a running call finish, drop the waiting ones."""
        self._thread.close()

    # Reading

    async def status(self) -> TrainerStatus:
        """Where it is; answers at once, during an update too."""
        return TrainerStatus(self._step, self._published.version, self._backend.parameter_count)

    def weight_source(self) -> PublishedWeights:
        """Where the published version can be fetched."""
        return self._published

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """Columns "log_probs", "entropy", "sum_pi_squared" of the response tokens, under the weights being trained."""
        given_up = False

        def compute() -> TrajectoryBatch:
            return self._backend.compute_log_probs(batch, columns, temperature, lambda: given_up)

        try:
            return await self._thread.run(compute, deadline_s=deadline_s)
        finally:
            given_up = True  # nobody waits any more: stop at the next micro-batch

    # Training

    async def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer, ctx: Mutation
    ) -> StepResult:
        """Add this batch's share of the global mini-batch's gradient; metrics are shares that add up over calls.

        Without a column "old_log_probs" the ratio is exactly 1: right only for the first use of fresh samples.
        """

        def compute() -> StepResult:
            check_loss(loss)
            try:
                return StepResult(self._step, self._accumulate(batch, loss, normalizer))
            except BaseException:
                self._drop_gradients()
                raise

        return await self._mutate("forward_backward", ctx, compute)

    async def optim_step(self, ctx: Mutation) -> StepResult:
        """Clip, step the optimizer and the schedule, zero the gradients; the step goes up by one."""

        def compute() -> StepResult:
            if not self._backend.has_gradients:
                raise StateError("optim_step without a forward_backward before it: there is no gradient")
            metrics = self._optimize() | self._backend.memory_metrics()
            self._step += 1
            return StepResult(self._step, metrics)

        return await self._mutate("optim_step", ctx, compute)

    async def update(self, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> StepResult:
        """All mini-batches and ppo_epochs of one loop iteration; the step goes up by one.

        A failure before the first optimizer step leaves everything as it was. One after it leaves the weights between
        two steps: from then on only load_checkpoint is allowed.
        """

        def compute() -> StepResult:
            revision = self._revision
            try:
                return self._update(batch, config)
            except BaseException as error:
                self._drop_gradients()
                if self._revision != revision:
                    self._damage = f"an update failed half-way at step {self._step} ({error})"
                raise

        return await self._mutate("update", ctx, compute)

    def _update(self, batch: TrajectoryBatch, config: UpdateConfig) -> StepResult:
        check_loss(config.loss)
        if self._backend.has_gradients:
            raise StateError("an update while gradients of forward_backward wait for their optim_step")
        plan = list(mini_batches(batch, config, self._step))
        if len(plan) > 1 and not batch.has("old_log_probs"):
            raise InvalidInputError(
                f"an update of {len(plan)} optimizer steps needs the column 'old_log_probs': only the first step is "
                "still at the weights that sampled",
                field="old_log_probs",
            )
        collected: list[Metrics] = []
        for rows in plan:
            part = batch.select(rows)
            shares = self._accumulate(part, config.loss, global_normalizer(part))
            collected.append(shares | self._optimize())
        metrics = _combine(collected) | self._backend.memory_metrics()
        if config.loss.use_kl_loss:
            metrics["actor/kl_coef"] = config.loss.kl_loss_coef
        self._step += 1
        return StepResult(self._step, metrics)

    def _accumulate(self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer) -> Metrics:
        shares = self._backend.forward_backward(batch, loss, normalizer)
        trained = float(batch.ragged("response_mask").values.sum())
        self._trained_tokens += trained
        return _NO_LOSS | shares | {"actor/trained_tokens": trained}

    def _optimize(self) -> Metrics:
        """One optimizer step; none if no token was trained (case B5) or the norm isn't finite (case H9)."""
        rate = self._options.optimizer.schedule.rate(self._step)
        if self._trained_tokens == 0:
            logger.warning("step %d: no token is trained in this mini-batch; the optimizer step is skipped", self._step)
            outcome = StepOutcome(0.0, 0.0, skipped=True)
            self._drop_gradients()
        else:
            self._trained_tokens = 0.0
            outcome = self._backend.optim_step(rate)
            self._revision += 0 if outcome.skipped else 1
            if outcome.skipped:
                logger.warning("step %d: the gradient norm is %s; step skipped", self._step, outcome.grad_norm)
        return {
            "actor/grad_norm": outcome.grad_norm,
            "actor/lr": rate,
            "actor/skipped_steps": float(outcome.skipped),
            "actor/changed_weights_share": outcome.changed_share,
        }

    def _drop_gradients(self) -> None:
        self._trained_tokens = 0.0
        self._backend.zero_grad()

    # Weights and checkpoints

    async def publish_weights(self, lineage: str, step: int, ctx: Mutation) -> WeightsManifest:
        """Freeze the current weights as a version, and serve it until the next one. Unchanged weights cost nothing."""

        def compute() -> WeightsManifest:
            current = self._published.snapshot
            if current is not None and self._published_revision == self._revision:
                version = current.manifest.version
                if (version.lineage, version.step) == (lineage, step):
                    return current.manifest
            weights, tied = self._backend.weights()
            snapshot = Snapshot.freeze(
                lineage, step, weights, tied=tied, dtype=self._options.publish_dtype, reuse=current
            )
            self._published.snapshot = snapshot
            self._published_revision = self._revision
            return snapshot.manifest

        return await self._mutate("publish_weights", ctx, compute)

    async def save_checkpoint(self, path: str, ctx: Mutation) -> Sequence[str]:
        """Write model, optimizer, RNG and counters below the folder `path`; returns the files' relative names."""

        def compute() -> Sequence[str]:
            if self._backend.has_gradients:
                raise StateError("a checkpoint while gradients wait for their optim_step would lose them")
            return checkpoint.save(Path(path), checkpoint.TrainerCheckpoint(self._step, self._backend.state()))

        return await self._mutate("save_checkpoint", ctx, compute)

    async def load_checkpoint(self, path: str, ctx: Mutation) -> TrainerStatus:
        """Restore all that save_checkpoint wrote, or nothing. Weights must be published anew after it."""

        def compute() -> TrainerStatus:
            loaded = checkpoint.load(Path(path))
            self._backend.load_state(loaded.state)
            self._trained_tokens = 0.0
            self._step = loaded.step
            self._revision += 1
            self._published.snapshot = None
            self._damage = ""
            return TrainerStatus(self._step, None, self._backend.parameter_count)

        return await self._mutate("load_checkpoint", ctx, compute, mends=True)

    async def export_hf(self, path: str, ctx: Mutation) -> Sequence[str]:
        """Write the weights as a Hugging Face model folder with tokenizer and chat template."""

        def compute() -> Sequence[str]:
            return export_hf(self._backend.model_for_export(), self._options.model.path, Path(path))

        return await self._mutate("export_hf", ctx, compute)

    async def _mutate(self, method: str, ctx: Mutation, compute: Callable[[], R], *, mends: bool = False) -> R:
        """Run `compute` in the thread, once per request id, if the trainer is at the expected step."""

        def checked() -> R:
            if self._damage and not mends:
                raise StateError(f"{self._damage}; load a checkpoint")
            if ctx.expected_step is not None and ctx.expected_step != self._step:
                raise StepMismatchError(
                    f"{method} expects the trainer at step {ctx.expected_step}, but it is at step {self._step}",
                    actual_step=str(self._step),
                    expected_step=str(ctx.expected_step),
                )
            return compute()

        return await self._answers.once(method, ctx, lambda: self._thread.run(checked))


_NO_LOSS: Metrics = {
    "actor/pg_loss": 0.0,
    "actor/pg_clipfrac": 0.0,
    "actor/pg_clipfrac_lower": 0.0,
    "actor/ppo_kl": 0.0,
}
"""Of a batch in which no row can move the weights: exact zeros, so that the names are always there."""

_SUMMED = frozenset({"actor/trained_tokens", "actor/skipped_steps"})
"""Metrics that are counts over the whole update; the others are means over its optimizer steps."""


def _combine(steps: Sequence[Metrics]) -> Metrics:
    """One update's metrics from its optimizer steps'. NaN stays NaN (case H9)."""
    names = dict.fromkeys(name for step in steps for name in step)
    combined: Metrics = {}
    for name in names:
        values = [step[name] for step in steps if name in step]
        total = math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
        combined[name] = total if name in _SUMMED else total / len(values)
    return combined | {"actor/optimizer_steps": float(len(steps))}


def mini_batches(batch: TrajectoryBatch, config: UpdateConfig, step: int) -> Iterator[np.ndarray[Any, Any]]:
    """Row numbers of each optimizer step, in order.

    Rows are taken in sample-id order, so the order of arrival changes nothing. Shuffling is keyed by (seed, step, ppo
    epoch). The last mini-batch of an epoch may be smaller; its own size is its denominator.
    """
    if config.mini_batch_size < 1 or config.ppo_epochs < 1:
        raise InvalidInputError(
            f"mini_batch_size and ppo_epochs must be at least 1, got {config.mini_batch_size}, {config.ppo_epochs}"
        )
    if len(batch) == 0:
        raise InvalidInputError("an update needs at least one sample, got an empty batch")
    ids = batch.sample_ids
    order = np.asarray(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    for epoch in range(config.ppo_epochs):
        rows = order
        if config.shuffle:
            rows = np.random.default_rng([config.seed, step, epoch]).permutation(order)
        for start in range(0, len(rows), config.mini_batch_size):
            yield rows[start : start + config.mini_batch_size]
