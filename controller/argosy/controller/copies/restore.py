"""Bring a run folder to the newest copy, on whatever machine: then a resume goes on from it as from its own."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from argosy.controller.copies.copies import Copies, Copy, is_content
from argosy.controller.copies.filesystem import RemoteFolder
from argosy.controller.fence import OPEN, Fence
from argosy.controller.files import write_atomically
from argosy.controller.recovery import LATEST, MANIFEST
from argosy.types.errors import ConfigError, CorruptDataError

log = logging.getLogger(__name__)

_MOVING = ".copy-moves-in"
"""In the run folder while a copy takes the place of what was there."""


def restore(copies: Copies, run_dir: Path, run_id: str | None, fence: Fence = OPEN) -> Copy | None:
    """Fetch the newest copy if it is newer than the run folder; None if there is nothing to fetch.

    A run that went on elsewhere has copies of a later start than this folder knows: what the folder has is put aside
    (`before-copy-…`; of several the last one stays), since its steps are not the run's any more.

    `run_id`: Of the run, as far as it is known. Raises ConfigError if the copy is another run's; CorruptDataError where
    a content of it is missing or damaged; StorageError; FencedError.
    """
    for left_over in run_dir.glob(".copy*.partial"):
        shutil.rmtree(left_over, ignore_errors=True)
    copy = copies.newest()
    if copy is None or (copy.generation, copy.step) <= copies.marked():
        return None
    if run_id is not None and run_id != copy.run_id:
        raise ConfigError(
            f"{copies.folder.name} holds copies of run {copy.run_id}, and {run_dir} is run {run_id}'s: name another "
            "place for this one's"
        )
    log.info("fetching the copy of step %d from %s", copy.step, copies.folder.name)
    working = run_dir / f".copy{fence.tag}-{secrets.token_hex(4)}.partial"
    copy = _fetch_all(copies, copy, working, lambda name: True)
    if not (working / copy.checkpoint / MANIFEST).is_file():
        raise CorruptDataError(f"the copy {copies.folder.name}/{copy.key} has no checkpoint")
    with fence.writing():
        moving = run_dir / _MOVING
        # After a restore that was broken off, what is here may be half of a copy, and the folder's own is put aside.
        earlier = [] if moving.exists() else list(run_dir.glob("before-copy-*"))
        moving.touch()
        aside = run_dir / f"before-copy-{copy.generation}-{copy.step}-{secrets.token_hex(4)}"
        for old in [*run_dir.glob("global_step_*"), run_dir / "ledger", run_dir / "metrics.jsonl"]:
            if old.exists():
                aside.mkdir(exist_ok=True)
                old.rename(aside / old.name)
        for new in working.iterdir():
            new.replace(run_dir / new.name)
        working.rmdir()
        write_atomically(run_dir / LATEST, f"{copy.step}\n".encode())
    copies.mark(copy)
    moving.unlink()
    if aside.exists():  # else a run that changes machines often would fill their disks
        for older in earlier:
            shutil.rmtree(older, ignore_errors=True)
    return copy


def fetch_books(url: str, to: Path) -> Path:
    """The ledger of the newest copy, in a folder of its own. Raises ConfigError where there is no copy."""
    copies = Copies(RemoteFolder(url), to, None)
    copy = copies.newest()
    if copy is None:
        raise ConfigError(f"there is no copy of a run at {copies.folder.name}")
    _fetch_all(copies, copy, to, lambda name: name.startswith("ledger/") or name == "metrics.jsonl")
    return to


def _fetch_all(copies: Copies, copy: Copy, to: Path, wanted: Callable[[str], bool]) -> Copy:
    """Fetch a copy's files; of a newer one instead, if whoever writes there has removed this one meanwhile."""
    while True:
        try:
            for name, digest in copy.files.items():
                if wanted(name):
                    _fetch(copies.folder, digest, to / name, name)
            return copy
        except CorruptDataError:
            newest = copies.newest()
            if newest is None or newest.key <= copy.key:
                raise
            shutil.rmtree(to)
            copy = newest


def _fetch(folder: RemoteFolder, digest: str, to: Path, name: str) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.fetch(f"files/{digest}", to)
    except FileNotFoundError as error:
        raise CorruptDataError(f"{folder.name} lacks the content of {name} ({digest})") from error
    if not is_content(to, digest):
        raise CorruptDataError(f"{folder.name}/files/{digest} is damaged: it is not what {name} was")
