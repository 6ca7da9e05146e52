"""Write copies of a run, and find the newest."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from argosy.config import Config
from argosy.controller.copies.filesystem import RemoteFolder
from argosy.controller.files import file_sha256, write_atomically
from argosy.controller.ledger import steps_in
from argosy.controller.ledger.segments import segment_path
from argosy.types.errors import AbortedError, ConfigError, CorruptDataError, FencedError, StorageError

log = logging.getLogger(__name__)

MARK = "copied.json"
"""In the run folder: which copy it is as new as."""
_LIST = re.compile(r"^gen_(\d+)\.step_(\d+)\.json$")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_READS = 10
"""Times that the newest copy is looked for, while others remove it."""
_WRITER = re.compile(r"^gen_(\d+)\.json$")
_LINEAGE = re.compile(r"^lineage_(\d+)$")
FIRST = ("config.yaml", "metrics.jsonl", "ledger/lives.jsonl")
"""Files of the run folder that a copy has beside the checkpoint and the ledger's steps, where they exist."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy, as its list has it."""

    generation: int
    step: int
    run_id: str
    files: Mapping[str, str]
    """Path in the run folder → SHA-256."""

    @property
    def key(self) -> str:
        """Of its list."""
        return f"copies/gen_{self.generation:05d}.step_{self.step:09d}.json"

    @property
    def checkpoint(self) -> str:
        """Name of its checkpoint's folder."""
        return f"global_step_{self.step}"


class Copies:
    """The copies of one run folder below a URL.

    Args:
        folder: Where they are.
        run_dir: The run folder.
        keep_count: How many stay; None: all.
    """

    def __init__(self, folder: RemoteFolder, run_dir: Path, keep_count: int | None) -> None:
        self.folder = folder
        self._run_dir = run_dir
        self._keep_count = keep_count
        self._generation = 0
        self._token = f"{socket.gethostname()}-{secrets.token_hex(8)}"

    def newest(self) -> Copy | None:
        """Of the highest generation that has any, the one of the highest step."""
        for _ in range(_READS):
            found = self._lists()
            if not found:
                return None
            with suppress(FileNotFoundError):  # removed since: whoever writes here has made a newer one
                return self.read(max(found))
        raise StorageError(f"the copies in {self.folder.name} are removed faster than they can be read")

    def read(self, number: tuple[int, int]) -> Copy:
        """The copy of a (generation, step). CorruptDataError where its list can't be read."""
        generation, step = number
        key = Copy(generation, step, "", {}).key
        try:
            found = json.loads(self.folder.read(key))
            files = {_below(str(k)): _digest(str(v)) for k, v in found["files"].items()}
            return Copy(generation, step, str(found["run_id"]), files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"{self.folder.name}/{key} is damaged: {error}") from error

    def try_it(self) -> None:
        """Write and remove a file, so that what is not allowed costs seconds and no step. Raises StorageError."""
        key = f"writers/try-{self._token}"
        try:
            self.folder.write(key, b"")
            self.folder.remove(key)
        except StorageError as error:
            raise StorageError(
                f"{error.message}. Copies of the checkpoints go there: allow it, or name another place with "
                "trainer.default_hdfs_dir=…"
            ) from error

    def claim(self, run_id: str) -> None:
        """Take the next generation, unless that is done: from now on all earlier writers are refused. ConfigError where
        another run's copies are."""
        if self._generation:
            return
        newest = self.newest()
        if newest is not None and newest.run_id != run_id:
            raise ConfigError(
                f"{self.folder.name} holds copies of run {newest.run_id}, and this is run {run_id}: name another place"
            )
        lists = [generation for generation, _ in self._lists()]
        self._generation = 1 + max([*lists, *self._writers()], default=0)
        facts = {"token": self._token, "since": round(time.time(), 3)}
        self.folder.write(self._writer_key, json.dumps(facts).encode())
        self._check()

    def lineages(self) -> list[int]:
        """Numbers of the lineages that any start of the run has begun, on whatever machine."""
        return [int(match.group(1)) for name in self.folder.sizes("writers") if (match := _LINEAGE.match(name))]

    def note_lineage(self, number: int) -> None:
        """A life begins: no later one is to give its weights the same name, even if nothing of it is ever copied."""
        self.folder.write(f"writers/lineage_{number:05d}", b"")
        self._check()  # a later start may have read the lineages before this one was there

    def add(self, step: int, run_id: str, goes_on: Callable[[], bool] = lambda: True) -> Copy | None:
        """Copy the checkpoint of a step, with the books until then. None if `goes_on` has said no in between.

        Raises FencedError when a later start of the run writes here; StorageError.
        """
        self.folder.goes_on = goes_on
        try:
            return self._add(step, run_id, goes_on)
        except AbortedError:
            return None
        finally:
            self.folder.goes_on = lambda: True

    def _add(self, step: int, run_id: str, goes_on: Callable[[], bool]) -> Copy | None:
        self.claim(run_id)
        self._check()
        there = self.folder.sizes("files")
        files: dict[str, str] = {}
        for path, digest in self._contents(step):
            if not goes_on():
                return None
            content, known = digest()
            files[path] = known
            size = content.stat().st_size if isinstance(content, Path) else len(content)
            if there.get(known) != size:  # also of what was cut short
                if isinstance(content, Path):
                    self.folder.send(content, f"files/{known}")
                else:
                    self.folder.write(f"files/{known}", content)
                there[known] = size
        self._check()
        copy = Copy(self._generation, step, run_id, files)
        body = {"format": 1, "run_id": run_id, "step": step, "made_at": round(time.time(), 3), "files": files}
        self.folder.write(copy.key, json.dumps(body, indent=1).encode())
        self.mark(copy)
        self._check()
        self._prune(set(there))
        return copy

    def mark(self, copy: Copy) -> None:
        """Note in the run folder that it has what a copy has."""
        facts = {"url": self.folder.name, "generation": copy.generation, "step": copy.step}
        write_atomically(self._run_dir / MARK, json.dumps(facts).encode())

    def marked(self) -> tuple[int, int]:
        """(generation, step) of the newest copy that the run folder has everything of; (0, 0) if it knows of none."""
        try:
            facts = json.loads((self._run_dir / MARK).read_text())
        except FileNotFoundError:
            return 0, 0
        here = facts.get("url") == self.folder.name
        return (int(facts["generation"]), int(facts["step"])) if here else (0, 0)

    @property
    def _writer_key(self) -> str:
        return f"writers/gen_{self._generation:05d}.json"

    def _check(self) -> None:
        """Raise FencedError unless this is the newest writer."""
        newest = max(self._writers(), default=0)
        token = json.loads(self.folder.read(self._writer_key)).get("token") if newest == self._generation else ""
        if token != self._token:
            raise FencedError(
                f"a later start of this run writes copies to {self.folder.name} (generation {newest}; this one has "
                f"{self._generation}): this controller must stop"
            )

    def _writers(self) -> list[int]:
        return [int(match.group(1)) for name in self.folder.sizes("writers") if (match := _WRITER.match(name))]

    def _lists(self) -> list[tuple[int, int]]:
        matches = [_LIST.match(name) for name in self.folder.sizes("copies")]
        return [(int(match.group(1)), int(match.group(2))) for match in matches if match]

    def _contents(self, step: int) -> list[tuple[str, Callable[[], tuple[Path | bytes, str]]]]:
        """Path in the run folder → what is to be sent, and its checksum."""
        checkpoint = self._run_dir / f"global_step_{step}"
        manifest: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_text())
        found: list[tuple[str, Callable[[], tuple[Path | bytes, str]]]] = []
        for name, entry in manifest["files"].items():
            found.append((f"{checkpoint.name}/{name}", _known(checkpoint / name, str(entry["sha256"]))))
        small = [f"{checkpoint.name}/manifest.json", *FIRST]
        books = self._run_dir / "ledger"
        small += [f"ledger/{segment_path(books, number).name}" for number in steps_in(books) if number <= step]
        found += [(name, _small(self._run_dir / name)) for name in small if (self._run_dir / name).is_file()]
        return found

    def _prune(self, there: set[str]) -> None:
        """Remove the oldest copies beyond `keep_count`, and what no copy has any more."""
        lists = sorted(self._lists())
        if not self._keep_count or len(lists) <= self._keep_count:
            return
        old, kept = lists[: -self._keep_count], lists[-self._keep_count :]
        used = {digest for number in kept for digest in self.read(number).files.values()}
        for generation, step in old:
            self.folder.remove(Copy(generation, step, "", {}).key)
        for digest in there - used:
            self.folder.remove(f"files/{digest}")


def _below(name: str) -> str:
    """A path that stays in the folder that it is put in; ValueError for others."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} is no path in a run folder")
    return name


def _digest(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"{text!r} is no checksum")
    return text


def _known(path: Path, digest: str) -> Callable[[], tuple[Path | bytes, str]]:
    return lambda: (path, digest)


def _small(path: Path) -> Callable[[], tuple[Path | bytes, str]]:
    """Read at once: others may be appending to it."""

    def read() -> tuple[Path | bytes, str]:
        data = path.read_bytes()
        return data, hashlib.sha256(data).hexdigest()

    return read


def copies_of(config: Config, run_dir: Path) -> Copies | None:
    """Where the configuration wants copies; None where it wants none. Raises ConfigError."""
    url = config.copy_url
    return Copies(RemoteFolder(url), run_dir, config.trainer.max_actor_ckpt_to_keep) if url else None


def is_content(path: Path, digest: str) -> bool:
    """Whether a file has that content."""
    return path.is_file() and file_sha256(path) == digest
