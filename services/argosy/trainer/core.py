"""The trainer core: counters, fencing by step, the walk over mini-batches. Implements `argosy.roles.policy.Policy`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from argosy.modeling.compute_thread import ComputeThread
from argosy.trainer import checkpoint
from argosy.trainer.answers import Answers
from argosy.trainer.backends import Backend
from argosy.trainer.export import export_hf
from argosy.trainer.metrics import NO_LOSS, Metrics, combine
from argosy.trainer.minibatch import mini_batches
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
        self._pending: _Pending | None = None
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

        Without a column "old_log_probs" the ratio is exactly 1: right only for the first use of fresh samples. A
        failure drops all of the mini-batch's gradient: begin it again.
        """

        def compute() -> StepResult:
            try:
                return StepResult(self._step, self._accumulate(batch, loss, normalizer))
            except BaseException:
                self._drop_gradients()
                raise

        try:
            return await self._mutate("forward_backward", ctx, compute)
        finally:
            self._forget_if_dropped()

    async def optim_step(self, ctx: Mutation) -> StepResult:
        """Clip, step the optimizer and the schedule, zero the gradients; the step goes up by one.

        The shares must cover the global mini-batch: a lost or doubled one would be a wrong step in silence.
        """

        def compute() -> StepResult:
            pending = self._pending
            if pending is None:
                raise StateError("optim_step without a forward_backward before it: there is no gradient")
            if pending.trained_tokens != pending.normalizer.token_count:
                self._drop_gradients()
                raise StateError(
                    f"the gradient covers {pending.trained_tokens:g} trained tokens of a mini-batch of "
                    f"{pending.normalizer.token_count:g}; it is dropped: begin the mini-batch again"
                )
            metrics = self._optimize(pending.trained_tokens) | self._backend.memory_metrics()
            self._step += 1
            return StepResult(self._step, metrics)

        try:
            return await self._mutate("optim_step", ctx, compute)
        finally:
            self._forget_if_dropped()

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
        if self._pending is not None:
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
            collected.append(shares | self._optimize(shares["actor/trained_tokens"]))
        metrics = combine(collected) | self._backend.memory_metrics()
        if config.loss.use_kl_loss:
            metrics["actor/kl_coef"] = config.loss.kl_loss_coef
        self._step += 1
        return StepResult(self._step, metrics)

    def _accumulate(self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer) -> Metrics:
        check_loss(loss)
        if self._pending is not None and self._pending.normalizer != normalizer:
            raise StateError(f"this mini-batch began with {self._pending.normalizer}, not with {normalizer}")
        trained = float(batch.ragged("response_mask").values.sum())
        before = self._pending.trained_tokens if self._pending else 0.0
        shares = self._backend.forward_backward(batch, loss, normalizer)
        self._pending = _Pending(normalizer, before + trained)
        return NO_LOSS | shares | {"actor/trained_tokens": trained}

    def _optimize(self, trained_tokens: float) -> Metrics:
        """One optimizer step; none if no token was trained (case B5) or the norm isn't finite (case H9)."""
        rate = self._options.optimizer.schedule.rate(self._step)
        self._pending = None
        if trained_tokens == 0:
            self._backend.zero_grad()
            outcome = StepOutcome(0.0, 0.0, skipped=True)
            logger.warning("step %d: no token of this mini-batch is trained; the optimizer step is skipped", self._step)
        else:
            outcome = self._backend.optim_step(rate)
            if outcome.skipped:
                logger.warning(
                    "step %d: gradient norm %s; the optimizer step is skipped", self._step, outcome.grad_norm
                )
        self._revision += 0 if outcome.skipped else 1
        return {
            "actor/grad_norm": outcome.grad_norm,
            "actor/lr": rate,
            "actor/skipped_steps": float(outcome.skipped),
            "actor/changed_weights_share": outcome.changed_share,
        }

    def _drop_gradients(self) -> None:
        self._pending = None
        self._backend.zero_grad()

    def _forget_if_dropped(self) -> None:
        """A repeated forward_backward must compute again once its gradient is gone (or used)."""
        if self._pending is None:
            self._answers.forget("forward_backward")

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
            if self._pending is not None:
                raise StateError("a checkpoint while gradients wait for their optim_step would lose them")
            return checkpoint.save(Path(path), checkpoint.TrainerCheckpoint(self._step, self._backend.state()))

        return await self._mutate("save_checkpoint", ctx, compute)

    async def load_checkpoint(self, path: str, ctx: Mutation) -> TrainerStatus:
        """Restore all that save_checkpoint wrote, or nothing. Weights must be published anew after it."""

        def compute() -> TrainerStatus:
            loaded = checkpoint.load(Path(path))
            self._backend.load_state(loaded.state)
            self._pending = None
            self._step = loaded.step
            self._revision += 1
            self._published.snapshot = None
            self._damage = ""
            return TrainerStatus(self._step, None, self._backend.parameter_count)

        status = await self._mutate("load_checkpoint", ctx, compute, mends=True)
        # A run that went back repeats its request ids: answers from before would be of another history.
        self._answers.forget()
        return status

    async def export_hf(self, path: str, ctx: Mutation) -> Sequence[str]:
        """Write the weights as a Hugging Face model folder with tokenizer and chat template."""

        def compute() -> Sequence[str]:
            options = self._options
            source = options.tokenizer_path or options.model.path
            return export_hf(self._backend.model_for_export(), source, Path(path), options.chat_template)

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


@dataclass(frozen=True, slots=True)
class _Pending:
    """A gradient that waits for its optim_step."""

    normalizer: GlobalNormalizer
    trained_tokens: float
