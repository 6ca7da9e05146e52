"""The trainer's roles: the policy that is trained, and the critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from argosy.roles.weights import WeightSource
from argosy.types.batch import TrajectoryBatch
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


class Training(Protocol):
    """What every trainer does, of a policy or of a critic. Mutations check `ctx.expected_step`."""

    async def status(self) -> TrainerStatus:
        """Where it is."""
        ...

    async def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer, ctx: Mutation
    ) -> StepResult:
        """Add this batch's share of the global mini-batch's gradient. Does not change the step."""
        ...

    async def optim_step(self, ctx: Mutation) -> StepResult:
        """Clip, step the optimizer and the schedule, zero the gradients; the step goes up by one."""
        ...

    async def update(self, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> StepResult:
        """All mini-batches and ppo_epochs of one loop iteration; the step goes up by one.

        The batch of a policy has old_log_probs, advantages, and ref_log_probs if use_kl_loss; a critic's has values
        (those before the update) and returns.
        """
        ...

    async def save_checkpoint(self, path: str, ctx: Mutation, *, background: bool = False) -> Sequence[str]:
        """Write model, optimizer, scheduler and RNG below the folder `path`; returns the files' relative names.

        The files are complete and synced when it returns; the controller's manifest, written after it, makes the
        checkpoint exist. With `background` it returns as soon as what is saved is copied, with no names: training can
        go on, and `finish_save` waits for the files.
        """
        ...

    async def finish_save(self, path: str, *, deadline_s: float) -> Sequence[str]:
        """Wait for the save begun last, which was to `path`; returns the files' relative names.

        Raises what the writing raised (StorageError), and StateError if the last save was to another place.
        """
        ...

    async def load_checkpoint(self, path: str, ctx: Mutation) -> TrainerStatus:
        """Restore all that save_checkpoint wrote. CorruptDataError names a missing or damaged part."""
        ...

    async def offload(self, ctx: Mutation) -> None:
        """Leave the device to others: weights and optimizer state move to main memory, freed memory to the system.

        The next call that computes brings them back by itself. Gradients that wait for their optim_step are kept.
        """
        ...

    async def export_hf(self, path: str, ctx: Mutation) -> Sequence[str]:
        """Write the weights as a Hugging Face model folder with tokenizer and chat template."""
        ...


class Policy(Training, Protocol):
    """One trainer of the policy (or the training core in this process)."""

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """As `argosy.roles.reference.Reference.compute_log_probs`, with the weights being trained.

        With LoRA there is a further column, "base_log_probs": those of the start model.
        """
        ...

    async def publish_weights(
        self, lineage: str, step: int, ctx: Mutation, *, form: WeightsForm = WeightsForm.MERGED
    ) -> WeightsManifest:
        """Freeze a snapshot of the current weights as a version, and serve it as a WeightSource until the next one.

        StateError on a form other than MERGED without a LoRA adapter that one rank and alpha tell. The version of BASE
        has step 0 whatever `step` says.
        """
        ...

    def weight_source(self) -> WeightSource:
        """Where the published version can be fetched."""
        ...

    async def open_transfer(
        self, transport: str, sync_id: str, receiver_count: int, ctx: Mutation
    ) -> tuple[TransferOffer, ...]:
        """Offer the published version to receivers by a transport; one offer a receiver, each to be used once.

        The weights stay as they are until the transfer is closed, at the latest after ctx.deadline_s. A sync may have
        one transfer of each transport; opening another closes the former. Raises InvalidInputError on a transport that
        this trainer lacks, NotFoundError if nothing is published.
        """
        ...

    async def close_transfer(self, sync_id: str, ctx: Mutation) -> None:
        """End the sync's transfers, finished or not; nothing happens if there are none."""
        ...


class Critic(Training, Protocol):
    """One trainer with a value head. Nothing is generated from its weights, so none are published."""

    async def compute_values(self, batch: TrajectoryBatch, *, deadline_s: float) -> TrajectoryBatch:
        """A batch with the column "values", one per response token: V of the state before it."""
        ...


class TrainingCore(Policy, Critic, Protocol):
    """What a trainer process serves. Which of the two it is, its options say; StateError for what the other does."""
