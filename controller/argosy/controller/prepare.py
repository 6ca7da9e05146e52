"""Everything that is known about a run before its first process starts, so that bad input costs seconds."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from argosy.config import Config, validate_row_count
from argosy.controller.copies import Copies, copies_of, restore
from argosy.controller.data.prompts import load_prompts
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.fence import OPEN, Fence
from argosy.controller.launch.lock import RunFolderLock
from argosy.controller.openai.endpoint import check_endpoint
from argosy.controller.recording.fitting import check_fits
from argosy.controller.recording.replay import RecordedOrder, open_replay
from argosy.controller.recording.store import Record
from argosy.controller.recovery import Checkpoint, CheckpointStore, find_resume
from argosy.types.errors import ConfigError, StateError, storage_error
from argosy.types.records import Prompt


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run reads before it looks at its folder: a standby has it long before its turn comes."""

    sampler: PromptSampler
    sources: set[str]
    held_out: list[Prompt]
    replayed: Record | None
    """The record that is trained from; None: rollouts are generated."""

    @classmethod
    def load(cls, config: Config) -> RunData:
        """Raises InvalidInputError, ConfigError."""
        replayed = open_replay(config)
        sampler, sources = data_order(config) if replayed is None else _recorded(replayed)
        held_out = _held_out(config)
        return cls(sampler, sources | {prompt.data_source for prompt in held_out}, held_out, replayed)


class PreparedRun:
    """Data, data order, checkpoint and length of a run. Writes nothing but the run folder itself.

    Args:
        config: Of the run.
        data: What was loaded before, for this run alone; None: it is loaded now.
        fence: Of the run folder.
        services_stay: The services were there before this process, and stay when it is gone: a run has a checkpoint of
            its beginning too, and one that has nothing to do but to end is no mistake.
    """

    def __init__(
        self, config: Config, data: RunData | None = None, *, fence: Fence = OPEN, services_stay: bool = False
    ) -> None:
        check_endpoint(config)
        self.services_stay = services_stay
        self.run_dir = config.run_folder.resolve()
        make_folder(self.run_dir)
        trainer = config.trainer
        self.store = CheckpointStore(self.run_dir, trainer.max_actor_ckpt_to_keep, fence)
        self.copies = copies_of(config, self.run_dir)
        """Of the run, elsewhere; None: there are to be none."""
        if self.copies is not None:
            self._restore_copy(self.copies, config, fence)
        self._newest = self.store.newest()
        self.checkpoint = find_resume(self.store, trainer.resume_mode, trainer.resume_from_path, self.run_dir)
        self.saved: dict[str, Any] = self.checkpoint.state() if self.checkpoint else {}
        """The controller's state in the checkpoint; empty for a new run."""
        inherited = self.saved.get("run_id") if self.continues else None
        self.run_id: str = config.argosy.run_id or inherited or new_run_id()
        config = replace(config, argosy=replace(config.argosy, run_id=self.run_id))
        data = data or RunData.load(config)
        self.replayed = data.replayed
        """The record that is trained from; None: rollouts are generated."""
        self.sampler, self.data_sources, self.held_out = data.sampler, data.sources, data.held_out
        # With dynamic sampling this is the most that there can be: a step may take several batches.
        self.total_steps = trainer.total_training_steps or self._all_steps(trainer.total_epochs)
        self._beginning = self.sampler.state()
        if self.checkpoint:
            self._restore_data_order(self.checkpoint)
        if self.replayed is not None:
            check_fits(config, self.replayed, self.first_step, self.total_steps)
        self.config = _with_schedule_length(config, self.total_steps)

    def _restore_copy(self, copies: Copies, config: Config, fence: Fence) -> None:
        """Where the folder is older than the newest copy of it, or another machine's: make it as new."""
        mode = config.trainer.resume_mode
        copies.try_it()
        if mode == "auto":
            with ExitStack() as stack:
                if fence is OPEN:  # else the caller shares the lock, and the fence keeps old leaders out
                    lock = RunFolderLock(self.run_dir)
                    lock.acquire()  # a live run's books must not be put aside under it
                    stack.callback(lock.release)
                here = self.store.newest()
                restore(copies, self.run_dir, config.argosy.run_id or (here.run_id if here else None), fence)
        elif mode == "disable" and copies.newest() is not None:
            raise ConfigError(
                f"{copies.folder.name} already holds copies of a run; trainer.resume_mode=disable would begin another "
                "one there: name another place, or set resume_mode=auto"
            )

    def _all_steps(self, total_epochs: int) -> int:
        """Steps where no number is given: those of the data epochs, or of the record."""
        if self.replayed is not None:
            return max(self.replayed.steps, default=1)
        return total_epochs * self.sampler.steps_per_epoch

    @property
    def first_step(self) -> int:
        """Steps done before this start."""
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def continues(self) -> bool:
        """Whether the checkpoint is of this run folder; one from elsewhere starts a run of its own."""
        return self.checkpoint is not None and self.checkpoint.path.resolve().parent == self.run_dir

    def check_unchanged(self) -> None:
        """To be called with the folder's lock held: until then another run may have been at work there, whose last
        steps this one would do again.

        Raises StateError if the folder has another newest checkpoint than when this run was prepared.
        """
        newest = self.store.newest()
        if newest != self._newest:
            what = "removed its checkpoints" if newest is None else f"saved {newest.path}"
            raise StateError(
                f"another run has {what} while this one was being prepared: the same command again goes on from there"
            )

    def reopen(self, checkpoint: Checkpoint | None) -> None:
        """Go on from another checkpoint of this run; None: from the beginning. One of the last step is none too few:
        what is left to do then is the export."""
        self.checkpoint = checkpoint
        self.saved = checkpoint.state() if checkpoint else {}
        self.sampler.restore(self.saved["sampler"] if checkpoint else self._beginning)

    def _restore_data_order(self, checkpoint: Checkpoint) -> None:
        self.sampler.restore(self.saved["sampler"])
        if checkpoint.step >= self.total_steps and not self.services_stay:
            raise ConfigError(
                f"nothing to do: {checkpoint.path} is at step {checkpoint.step} of {self.total_steps}; raise "
                "trainer.total_training_steps (or total_epochs), or start anew with another trainer.experiment_name"
            )


def data_order(config: Config) -> tuple[PromptSampler, set[str]]:
    """The training prompts in their order, and the data sources among them. Raises InvalidInputError, ConfigError."""
    source = load_prompts(config, "train")
    validate_row_count(config, len(source), filtered_count=source.dropped_count)
    seed = config.argosy.seed if config.data.seed is None else config.data.seed
    batch_size = config.data.gen_batch_size or config.data.train_batch_size
    return PromptSampler(source, batch_size, shuffle=config.data.shuffle, seed=seed), source.data_sources()


def _recorded(record: Record) -> tuple[PromptSampler, set[str]]:
    """In place of data: a record has its prompts with it, and they are judged already."""
    return RecordedOrder(record), set()


def _held_out(config: Config) -> list[Prompt]:
    trainer = config.trainer
    if config.argosy.replay.path is not None:
        return []  # nobody is there to answer them
    wanted = trainer.val_before_train or trainer.val_only or trainer.test_freq > 0
    return list(load_prompts(config, "val").in_order()) if config.data.val_files and wanted else []


def _with_schedule_length(config: Config, total_steps: int) -> Config:
    """Each learning-rate schedule runs over all steps that train its model, unless it was given its own length.

    Raises ConfigError if the critic's warm-up leaves no step to the policy.
    """
    warmup = config.trainer.critic_warmup
    if warmup >= total_steps:
        raise ConfigError(
            f"trainer.critic_warmup: got {warmup} in a run of {total_steps} steps: the policy would never be trained"
        )
    optims = {
        "actor_rollout_ref.actor.optim": (config.actor_rollout_ref.actor.optim, total_steps - warmup),
        "critic.optim": (config.critic.optim, total_steps),
    }
    return config.with_values(
        {
            f"{path}.total_training_steps": steps
            for path, (optim, steps) in optims.items()
            if optim.total_training_steps < 1
        }
    )


def make_folder(path: Path) -> None:
    """Make a folder and see that files can be written in it. Raises StorageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise storage_error(error, path) from error


def new_run_id() -> str:
    """Unique for practical purposes, and says when it began."""
    return f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
