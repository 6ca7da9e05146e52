"""Checkpoints: a folder `global_step_N` exists as a checkpoint from the moment its manifest, written last, is there.

    global_step_N/
        actor/…               the trainer's files
        critic/…              the critic's, if there is one
        controller.json       data order, ledger cut, KL controller, lineage
        in_flight.json.gz     groups under way, with their tokens (asynchronous training only)
        manifest.json         every file with its size and SHA-256; written last

A save goes to `.global_step_N.partial` and is renamed when complete, so that a crash leaves nothing that looks like a
checkpoint. `latest_checkpointed_iteration.txt` (verl's name) is moved after that, and only then is the oldest removed:
a run that is killed in between leaves one more than it keeps, until its first save after the next start. What is
removed is renamed first, so that nothing that is half removed looks like a checkpoint either.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.controller.context import RunContext
from argosy.controller.fence import OPEN, Fence
from argosy.controller.files import file_sha256, sync_folder, write_atomically
from argosy.types.errors import (
    ConfigError,
    CorruptDataError,
    FencedError,
    StorageError,
    UnavailableError,
    storage_error,
)

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
STATE = "controller.json"
IN_FLIGHT = "in_flight"
"""In the controller's state: {"stream": groups under way, "entries": what the ledger has of them}."""
PENDING_VALIDATION = "pending_validation"
"""In the controller's state: the step whose validation ran beside training, unfinished when it was saved; or null."""
_IN_FLIGHT_FILE = "in_flight.json.gz"
LATEST = "latest_checkpointed_iteration.txt"
_WAY_OUT = "restore it, or move the folder away to resume from an earlier one"
_FOLDER = re.compile(r"^global_step_(\d+)$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    run_id: str

    @property
    def actor(self) -> Path:
        """The trainer's files."""
        return self.path / "actor"

    @property
    def critic(self) -> Path:
        """The critic's files; there only if the run had one."""
        return self.path / "critic"

    def state(self) -> dict[str, Any]:
        """What the controller saved."""
        loaded: dict[str, Any] = json.loads((self.path / STATE).read_text())
        return loaded

    def in_flight(self) -> dict[str, Any]:
        """What was under way when it was saved: {"stream": …, "entries": …}; both empty where nothing was."""
        path = self.path / _IN_FLIGHT_FILE
        if not path.exists():
            return {"stream": {}, "entries": []}
        loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        return loaded


def read_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint folder and verify every file of its manifest.

    Raises:
        ConfigError: there is no such folder, or it is no complete checkpoint.
        CorruptDataError: a file is missing or damaged; each is named.
    """
    if not path.is_dir():
        raise ConfigError(f"there is no checkpoint folder {path}")
    manifest_path = path / MANIFEST
    if not manifest_path.exists():
        inside = [child.name for child in sorted(path.glob("global_step_*"))]
        hint = f"; did you mean {path / inside[-1]}?" if inside else ""
        raise ConfigError(f"{path} is no complete checkpoint: it has no {MANIFEST}{hint}")
    try:
        manifest = json.loads(manifest_path.read_text())
        files = dict(manifest["files"])
        checkpoint = Checkpoint(path, int(manifest["step"]), str(manifest["run_id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            f"checkpoint {path} is damaged: {MANIFEST} can't be read ({error}); {_WAY_OUT}"
        ) from error
    faults = [fault for name, entry in files.items() if (fault := _file_fault(path / name, entry))]
    if faults:
        raise CorruptDataError(f"checkpoint {path} is damaged: " + "; ".join(faults) + f"; {_WAY_OUT}")
    return checkpoint


def _file_fault(path: Path, entry: Mapping[str, Any]) -> str:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != entry["size_bytes"]:
        return f"{path.name} has {path.stat().st_size} bytes instead of {entry['size_bytes']}"
    if file_sha256(path) != entry["sha256"]:
        return f"{path.name} does not match its checksum"
    return ""


def _run_id_of(path: Path) -> str:
    """Of a checkpoint's manifest; empty if the manifest is damaged, which `read_checkpoint` reports in full."""
    try:
        return str(json.loads((path / MANIFEST).read_text())["run_id"])
    except (ValueError, KeyError, TypeError):
        return ""


class CheckpointStore:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, keep_count: int | None, fence: Fence = OPEN) -> None:
        self.fence = fence
        """Of the run folder; a standby gets its own when it takes over."""
        self._folder = folder
        self._keep_count = keep_count

    def complete(self) -> list[Checkpoint]:
        """Folders with a manifest, by step (as a number: case E4); their files are not verified here."""
        found = []
        for path in self._folder.glob("global_step_*"):
            match = _FOLDER.match(path.name)
            if match and (path / MANIFEST).exists():
                found.append(Checkpoint(path, int(match.group(1)), _run_id_of(path)))
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def newest(self) -> Checkpoint | None:
        """The checkpoint that the pointer names; without a usable pointer, that of the highest step. Not verified."""
        found = self.complete()
        pointer = self._folder / LATEST
        step = int(pointer.read_text()) if pointer.exists() and pointer.read_text().strip().isdigit() else None
        named = [checkpoint for checkpoint in found if checkpoint.step == step]
        return (named or found)[-1] if found else None

    def latest(self) -> Checkpoint | None:
        """The newest, verified.

        Raises CorruptDataError if it is damaged: whether to go back further is for a person to decide.
        """
        newest = self.newest()
        return None if newest is None else read_checkpoint(newest.path)

    def begin(self, step: int, folders: Iterable[str] = ("actor",)) -> Path:
        """A fresh working folder for a save, with one folder for each trainer.

        Leftovers of interrupted saves and removals are removed (case E3).
        """
        path = self._folder / f".global_step_{step}{self.fence.tag}.partial"
        try:
            with self.fence.writing():
                for kind in ("partial", "removed"):
                    for left_over in self._folder.glob(f".global_step_*.{kind}"):
                        shutil.rmtree(left_over, ignore_errors=True)
                for name in folders:
                    (path / name).mkdir(parents=True)
        except OSError as error:
            raise storage_error(error, path) from error
        return path

    def commit(self, step: int, run_id: str, working: Path, state: Mapping[str, Any]) -> Checkpoint:
        """Make a save a checkpoint: state, manifest, rename, pointer, and only then prune the old ones.

        Raises StorageError; FencedError when another controller leads now, after which there is no such checkpoint.
        """
        try:
            return self._commit(step, run_id, working, state)
        except (StorageError, OSError):
            with self.fence.writing():  # whoever shuts others out takes their unfinished saves away
                raise

    def _commit(self, step: int, run_id: str, working: Path, state: Mapping[str, Any]) -> Checkpoint:
        small = {name: value for name, value in state.items() if name != IN_FLIGHT}
        write_atomically(working / STATE, json.dumps(small, indent=1).encode())
        in_flight = state.get(IN_FLIGHT, {})
        if any(in_flight.values()):
            body = json.dumps(in_flight).encode()
            write_atomically(working / _IN_FLIGHT_FILE, gzip.compress(body, compresslevel=1, mtime=0))
        files = {
            str(path.relative_to(working)): {"size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
            for path in sorted(working.rglob("*"))
            if path.is_file()
        }
        manifest = {"format": 1, "step": step, "run_id": run_id, "files": files}
        write_atomically(working / MANIFEST, json.dumps(manifest, indent=1).encode())
        final = self._folder / f"global_step_{step}"
        with self.fence.writing():
            self._put_in_place(working, final, self._folder / f".global_step_{step}.replaced")
            write_atomically(self._folder / LATEST, f"{step}\n".encode())
            removed = self._prune(run_id, newest=step)
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)
        return Checkpoint(final, step, run_id)

    def _put_in_place(self, working: Path, final: Path, aside: Path) -> None:
        try:
            if final.exists():
                # The same step again after a resume: move the old one away first, so that no moment has half of each.
                shutil.rmtree(aside, ignore_errors=True)
                final.rename(aside)
                working.rename(final)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                working.rename(final)
            sync_folder(self._folder)
        except OSError as error:
            raise storage_error(error, final) from error

    def _prune(self, run_id: str, newest: int) -> list[Path]:
        """Rename what is more than there should be; where it lies now, to be deleted."""
        if self._keep_count is None or self._keep_count < 1:
            return []
        removed = []
        # Only this run's own, never beyond the newest: a stray folder of another run is not ours to count or delete.
        ours = [c for c in self.complete() if c.run_id == run_id and c.step <= newest]
        for checkpoint in ours[: -self._keep_count]:
            aside = self._folder / f".{checkpoint.path.name}.removed"
            shutil.rmtree(aside, ignore_errors=True)
            with suppress(OSError):  # on a disk that refuses it, the next save tries again
                checkpoint.path.rename(aside)
                removed.append(aside)
        return removed


LATEST_KEY = "latest_checkpoint"


async def publish_latest(ctx: RunContext, name: str) -> None:
    """Move the run's "latest checkpoint" in membership, by compare-and-swap under this term.

    While the store can't be reached, the checkpoint is there all the same, and the next one is told. Raises FencedError
    when a newer leader has moved it: this one's checkpoint is not the run's.
    """
    membership = ctx.membership
    try:
        current = await membership.get_state(ctx.run_id, LATEST_KEY)
        revision = 0 if current is None else current.revision
        swapped = await membership.compare_and_swap(
            ctx.run_id, LATEST_KEY, name, expected_revision=revision, term=ctx.term
        )
    except UnavailableError as error:
        log.warning("%s is complete, but membership can't be told: %s", name, error)
        return
    if swapped is None:
        raise FencedError(f"another controller has published a checkpoint of run {ctx.run_id} meanwhile")


def find_resume(store: CheckpointStore, mode: str, path: str | None, folder: Path) -> Checkpoint | None:
    """Which checkpoint to start from (case H5).

    `auto`: the latest here, or None for a new run. `resume_path`: exactly that folder, every problem an error.
    `disable`: a new run; refused where checkpoints exist, since nothing existing is overwritten.
    """
    if mode == "resume_path":
        if not path:
            raise ConfigError("trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N")
        return read_checkpoint(Path(path).expanduser())
    if mode == "disable":
        if existing := store.complete():
            raise ConfigError(
                f"{folder} already holds checkpoints up to step {existing[-1].step}; trainer.resume_mode=disable would "
                "overwrite them: choose another trainer.experiment_name (or default_local_dir), or resume_mode=auto"
            )
        return None
    return store.latest()
