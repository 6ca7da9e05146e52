"""The trainer core: counters, fencing by step, the walk over mini-batches. Implements `argosy.roles.policy.Policy`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from argosy.modeling.value_model import VALUE_COLUMN
from argosy.trainer.answers import Answers
from argosy.trainer.backends import Backend
from argosy.trainer.computing import Computing
from argosy.trainer.export import export_hf
from argosy.trainer.metrics import NO_LOSS, Metrics, combine, explained
from argosy.trainer.minibatch import mini_batches
from argosy.trainer.objective import check_loss, global_normalizer
from argosy.trainer.optimizer import StepOutcome
from argosy.trainer.options import TrainerOptions
from argosy.trainer.saves import Saves
from argosy.trainer.selection import check_whole, with_mini_batch_column
from argosy.trainer.source import PublishedWeights
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InvalidInputError, StateError, StepMismatchError
from argosy.types.ids import PolicyVersion
from argosy.types.ragged import Ragged
from argosy.types.records import (
    GlobalNormalizer,
    LossConfig,
    Mutation,
    StepResult,
    TrainerStatus,
    TransferOffer,
    UpdateConfig,
    WeightsForm,
    WeightsManifest,
)
from argosy.weightsync.hosts import host_id
from argosy.weightsync.transfers import Transfers
from argosy.weightsync.transports import TRANSPORTS

logger = logging.getLogger(__name__)

R = TypeVar("R")

_OFF_DEVICE = frozenset({"offload", "save_checkpoint"})
"""Mutations that need nothing on the device: a save copies to main memory from wherever things are."""


class Trainer:
    """One policy in training.

    Everything that touches the model runs in one compute thread, in order of arrival; the event loop stays free. A
    mutation is done once per request id, and only at its expected step.
    """

    def __init__(self, options: TrainerOptions, make_backend: Callable[[TrainerOptions], Backend]) -> None:
        self._options = options
        self._prefix = "critic" if options.value_head else "actor"  # of metrics
        self._thread = Computing(options.threads)
        self._answers = Answers()
        self._published = PublishedWeights(options.publish_dtype, delta=options.send.delta)
        self._transfers = Transfers(options.send)
        self._backend = make_backend(options)
        self._thread.watch(self._backend)
        self._step = 0
        self._revision = 0  # counts changes of the weights
        self._pending: _Pending | None = None
        self._saves = Saves()
        self._offloaded = False
        self._damage = ""  # why nothing but load_checkpoint is allowed

    def close(self) -> None:
        """Let a running call finish, drop the waiting ones, end the backend's other processes."""
        self._thread.close()

    async def wait_failed(self) -> BaseException:
        """Return why this trainer can't work any more (a rank has failed); never, as long as it can."""
        return await self._thread.wait_failed()

    # Reading

    async def status(self) -> TrainerStatus:
        """Where it is; answers at once, during an update too."""
        return self._status(self._published.version)

    def _status(self, version: PolicyVersion | None) -> TrainerStatus:
        return TrainerStatus(
            self._step,
            version,
            self._backend.parameter_count,
            self._options.value_head,
            host_id(),
            () if self._options.value_head else tuple(TRANSPORTS),
        )

    def weight_source(self) -> PublishedWeights:
        """Where the published version can be fetched."""
        return self._published

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """Columns "log_probs", "entropy", "sum_pi_squared" of the response tokens, under the weights being trained.

        With LoRA also "base_log_probs": with the adapter off, which are those of the start model.
        """
        if self._options.value_head:
            raise StateError("this trainer has a value head: it computes values, not log-probs")
        return await self._evaluate(batch, columns, temperature, deadline_s)

    async def compute_values(self, batch: TrajectoryBatch, *, deadline_s: float) -> TrajectoryBatch:
        """Column "values": V of the state before each response token, under the weights being trained."""
        if not self._options.value_head:
            raise StateError("this trainer has no value head: it can't compute values")
        return await self._evaluate(batch, [VALUE_COLUMN], 1.0, deadline_s)

    async def _evaluate(
        self, batch: TrajectoryBatch, columns: Sequence[str], temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        given_up = False

        def compute() -> TrajectoryBatch:
            self._on_device()
            return self._backend.evaluate(batch, columns, temperature, lambda: given_up)

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
                check_loss(loss)
                check_whole(batch, loss, normalizer)
                whole = with_mini_batch_column(batch, loss, self._log_probs, (0, self._step), fresh=False)
                return StepResult(self._step, self._accumulate(whole, loss, normalizer))
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
            metrics = self._optimize(pending.trained_tokens) | self._memory_metrics()
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
        before = VALUE_COLUMN if self._options.value_head else "old_log_probs"
        if len(plan) > 1 and not batch.has(before):
            raise InvalidInputError(
                f"an update of {len(plan)} optimizer steps needs the column {before!r}: only the first step is still "
                "at the weights from before the update",
                field=before,
            )
        collected: list[Metrics] = []
        revision = self._revision
        for number, rows in enumerate(plan):
            draw, fresh = (config.seed, self._step, number), self._revision == revision
            part = with_mini_batch_column(batch.select(rows), config.loss, self._log_probs, draw, fresh=fresh)
            shares = self._accumulate(part, config.loss, global_normalizer(part))
            collected.append(shares | self._optimize(shares[f"{self._prefix}/trained_tokens"]))
        metrics = combine(collected, self._prefix) | self._memory_metrics()
        if self._options.value_head:
            metrics |= explained(batch)
        if config.loss.use_kl_loss:
            metrics["actor/kl_coef"] = config.loss.kl_loss_coef
        self._step += 1
        return StepResult(self._step, metrics)

    def _log_probs(self, batch: TrajectoryBatch, temperature: float) -> Ragged:
        return self._backend.evaluate(batch, ["log_probs"], temperature, lambda: False).ragged("log_probs")

    def _accumulate(self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer) -> Metrics:
        check_loss(loss)
        if self._pending is not None and self._pending.normalizer != normalizer:
            raise StateError(f"this mini-batch began with {self._pending.normalizer}, not with {normalizer}")
        trained = float(batch.ragged("response_mask").values.sum())
        before = self._pending.trained_tokens if self._pending else 0.0
        shares = self._backend.forward_backward(batch, loss, normalizer)
        self._pending = _Pending(normalizer, before + trained)
        return NO_LOSS[self._prefix] | shares | {f"{self._prefix}/trained_tokens": trained}

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
        metrics = {
            "grad_norm": outcome.grad_norm,
            "lr": rate,
            "skipped_steps": float(outcome.skipped),
            "changed_weights_share": outcome.changed_share,
        }
        return {f"{self._prefix}/{name}": value for name, value in metrics.items()}

    def _memory_metrics(self) -> Metrics:
        """As the backend reports them; a critic's stand beside the policy's in one table."""
        found = self._backend.memory_metrics()
        if not self._options.value_head:
            return found
        return {name.replace("perf/", "perf/critic_", 1): value for name, value in found.items()}

    def _drop_gradients(self) -> None:
        self._pending = None
        self._backend.zero_grad()

    def _forget_if_dropped(self) -> None:
        """A repeated forward_backward must compute again once its gradient is gone (or used)."""
        if self._pending is None:
            self._answers.forget("forward_backward")

    # Weights and checkpoints

    async def offload(self, ctx: Mutation) -> None:
        """Leave the device to others until something is computed again."""

        def compute() -> None:
            if not self._offloaded:
                self._backend.offload()
                self._offloaded = True

        await self._mutate("offload", ctx, compute)

    def _on_device(self) -> None:
        """Before anything is computed."""
        if self._offloaded:
            self._backend.onload()
            self._offloaded = False

    async def publish_weights(
        self, lineage: str, step: int, ctx: Mutation, *, form: WeightsForm = WeightsForm.MERGED
    ) -> WeightsManifest:
        """Freeze the current weights as a version, and serve it until the next one. Unchanged weights cost nothing."""

        if self._options.value_head:
            raise StateError(
                "this trainer has a value head: nothing is generated from its weights, so none are published"
            )

        def compute() -> WeightsManifest:
            return self._published.publish(self._backend, lineage, step, form, self._revision)

        return await self._mutate("publish_weights", ctx, compute)

    async def open_transfer(
        self, transport: str, sync_id: str, receiver_count: int, ctx: Mutation
    ) -> tuple[TransferOffer, ...]:
        """See the role. A published version that is being sent is not overwritten by the next one."""

        async def start() -> tuple[TransferOffer, ...]:
            snapshot = self._published.published()
            return await self._transfers.open(snapshot, transport, sync_id, receiver_count, ctx)

        return await self._answers.once("open_transfer", ctx, start)

    async def close_transfer(self, sync_id: str, ctx: Mutation) -> None:
        """See the role."""
        await self._answers.once("close_transfer", ctx, lambda: self._transfers.close(sync_id, ctx))

    async def save_checkpoint(self, path: str, ctx: Mutation, *, background: bool = False) -> Sequence[str]:
        """Write model, optimizer, RNG and counters below the folder `path`; returns the files' relative names.

        What is written is the state when the call's turn came; calls after it don't wait for the writing. With
        `background` it returns as soon as that state is copied, with no names: `finish_save` waits for the files.
        """

        def start() -> Future[list[str]]:
            if self._pending is not None:
                raise StateError("a checkpoint while gradients wait for their optim_step would lose them")
            return self._backend.start_save(Path(path), self._step, background=background)

        async def save() -> Sequence[str]:
            started = await self._thread.run(self._checked("save_checkpoint", ctx, start))
            self._saves.began(path, started)
            return [] if background else await self._saves.finished(path, None)

        return await self._answers.once("save_checkpoint", ctx, save)

    async def finish_save(self, path: str, *, deadline_s: float) -> Sequence[str]:
        """Wait until the save begun last, to `path`, is complete and synced; returns the files' relative names.

        May be asked again, also after it has ended. Raises what the writing raised; StateError if the last save was to
        another place.
        """
        return await self._saves.finished(path, deadline_s)

    async def load_checkpoint(self, path: str, ctx: Mutation) -> TrainerStatus:
        """Restore all that save_checkpoint wrote, or nothing. Weights must be published anew after it."""

        def compute() -> TrainerStatus:
            step = self._backend.load_checkpoint(Path(path))
            self._pending = None
            self._step = step
            self._revision += 1
            self._published.forget()
            self._damage = ""
            return self._status(None)

        status = await self._mutate("load_checkpoint", ctx, compute, mends=True)
        # A run that went back repeats its request ids: answers from before would be of another history.
        self._answers.forget()
        return status

    async def export_hf(self, path: str, ctx: Mutation) -> Sequence[str]:
        """Write the weights as a Hugging Face model folder with tokenizer and chat template."""

        def compute() -> Sequence[str]:
            options = self._options
            source = options.tokenizer_path or options.model.path
            return export_hf(
                self._backend.model_for_export(),
                source,
                Path(path),
                options.chat_template,
                max_shard_size=options.max_shard_size,
            )

        return await self._mutate("export_hf", ctx, compute)

    async def _mutate(self, method: str, ctx: Mutation, compute: Callable[[], R], *, mends: bool = False) -> R:
        """Run `compute` in the thread, once per request id, if the trainer is at the expected step."""
        checked = self._checked(method, ctx, compute, mends=mends)
        return await self._answers.once(method, ctx, lambda: self._thread.run(checked))

    def _checked(self, method: str, ctx: Mutation, compute: Callable[[], R], *, mends: bool = False) -> Callable[[], R]:
        """`compute`, refused if the trainer is damaged or not at the expected step by then."""

        def checked() -> R:
            if self._damage and not mends:
                raise StateError(f"{self._damage}; load a checkpoint")
            if ctx.expected_step is not None and ctx.expected_step != self._step:
                raise StepMismatchError(
                    f"{method} expects the trainer at step {ctx.expected_step}, but it is at step {self._step}",
                    actual_step=str(self._step),
                    expected_step=str(ctx.expected_step),
                )
            if method not in _OFF_DEVICE:
                self._on_device()
            return compute()

        return checked


@dataclass(frozen=True, slots=True)
class _Pending:
    """A gradient that waits for its optim_step."""

    normalizer: GlobalNormalizer
    trained_tokens: float
