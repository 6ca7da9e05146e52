"""A record: a folder with one Parquet file per step, and an index that says which files count.

    record.json            what was recorded: run, model, vocabulary, samples per prompt
    index.jsonl            one line per step: file, bytes, SHA-256, counts. Written after the file: what isn't in it
                           doesn't exist. Of a step that stands there twice, the last line counts
    step-00000001.parquet  one row per sample (rows.py); readable by anything that reads Parquet

A run that resumes drops what was recorded after its checkpoint, since those steps are done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from argosy.controller.files import file_sha256
from argosy.controller.producing import StepRecord
from argosy.controller.recording.rows import from_table
from argosy.types.errors import ConfigError, CorruptDataError
from argosy.types.ids import PolicyVersion

FORMAT = 1
HEAD, INDEX = "record.json", "index.jsonl"

FOLDER = "record"
"""In a run folder."""
META = b"argosy"
DIGESTED_BYTES = 1 << 30
"""Bytes whose checksums may be computed before a run starts: seconds. Each step's is computed when it is read, too."""
_SHOWN = 5
"""Damaged steps that a message names."""


@dataclass(frozen=True, slots=True)
class RecordHead:
    """What a whole record says of itself."""

    run_id: str
    model: str
    """`actor_rollout_ref.model.path`, for people."""
    tokenizer: str
    """Digest of the vocabulary that the ids are of."""
    n: int
    """Samples per prompt."""
    train_batch_size: int
    """Prompts per step."""
    rollouts_only: bool = False
    """Nothing was trained in between: all steps are of the same weights."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """A line of the index."""

    step: int
    file: str
    size_bytes: int
    sha256: str
    prompt_count: int
    sample_count: int
    token_count: int
    """Of the answers."""
    mean_score: float | None
    """None: no sample has a score."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step as it was recorded."""

    record: StepRecord
    metrics: Mapping[str, float]
    """Of its generation and scoring."""
    sampler_state: Mapping[str, Any]
    reward_state: Mapping[str, Any]


class Record:
    """A record that is read.

    Args:
        folder: The record, or the folder of a run that has one.

    Raises:
        ConfigError: there is no record.
        CorruptDataError: it can't be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder if (folder / HEAD).exists() else folder / FOLDER
        if not (self.folder / HEAD).is_file():
            raise ConfigError(
                f"there is no record in {folder}: it has neither {HEAD} nor {FOLDER}/{HEAD}. A run with "
                "argosy.record.enable=true makes one, and so does `argosy rollout`"
            )
        self.head = self._read_head()
        self.entries: dict[int, StepEntry] = self._read_index()
        """By step."""

    @property
    def steps(self) -> list[int]:
        """In order."""
        return sorted(self.entries)

    def check(self, step: int) -> StepEntry:
        """The entry of a step, whose file is whole. Raises CorruptDataError that names it, ConfigError if not there."""
        entry = self._entry(step)
        if problem := self._problem(entry, digest=True):
            raise CorruptDataError(f"the record {self.folder} is damaged: step {step}: {entry.file} {problem}")
        return entry

    def check_all(self, steps: Iterable[int], *, digest_bytes: int = DIGESTED_BYTES) -> None:
        """Each of these steps is there and its file has its size; where all have at most `digest_bytes`, and its
        checksum. Raises as `check`, with all that are damaged."""
        entries = [self._entry(step) for step in steps]
        digest = sum(entry.size_bytes for entry in entries) <= digest_bytes
        found = {entry: problem for entry in entries if (problem := self._problem(entry, digest=digest))}
        if found:
            told = [f"step {entry.step}: {entry.file} {problem}" for entry, problem in found.items()]
            more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
            raise CorruptDataError(f"the record {self.folder} is damaged: {'; '.join(told[:_SHOWN])}{more}")

    def _entry(self, step: int) -> StepEntry:
        if step not in self.entries:
            raise ConfigError(f"the record {self.folder} has no step {step}: it has {self.range_text()}")
        return self.entries[step]

    def _problem(self, entry: StepEntry, *, digest: bool) -> str:
        """What is wrong with a step's file; empty: nothing that was looked at."""
        path = self.folder / entry.file
        if not path.is_file():
            return "is missing"
        size = path.stat().st_size
        if size != entry.size_bytes:
            return f"has {size} bytes instead of {entry.size_bytes}"
        if digest and file_sha256(path) != entry.sha256:
            return "does not match its checksum"
        return ""

    def read(self, step: int) -> RecordedStep:
        """A step, checked. Raises as `check`."""
        entry = self.check(step)
        path = self.folder / entry.file
        try:
            table = pq.read_table(path)
            meta = json.loads(table.schema.metadata[META])
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise CorruptDataError(
                f"the record {self.folder} is damaged: {entry.file} can't be read: {error}"
            ) from error
        version = meta["version"] and PolicyVersion(*meta["version"])
        record = from_table(table, step, version)
        return RecordedStep(record, meta["metrics"], meta["sampler_state"], meta["reward_state"])

    def range_text(self) -> str:
        """Which steps there are, for messages."""
        steps = self.steps
        if not steps:
            return "none"
        if steps[-1] - steps[0] + 1 == len(steps):
            return f"steps {steps[0]} to {steps[-1]}"
        return f"{len(steps)} steps between {steps[0]} and {steps[-1]}"

    def _read_head(self) -> RecordHead:
        path = self.folder / HEAD
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            version = values.pop("format")
            head = RecordHead(**values) if version == FORMAT else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"{path} can't be read: {error}") from error
        if head is None:
            raise ConfigError(f"{path} has format {version}; this release reads {FORMAT}")
        return head

    def _read_index(self) -> dict[int, StepEntry]:
        path = self.folder / INDEX
        entries: dict[int, StepEntry] = {}
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n") and number == len(lines):
                break  # a run that was killed while it wrote: that step was never entered
            try:
                entry = StepEntry(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise CorruptDataError(f"line {number} of {path} can't be read: {error}") from error
            if Path(entry.file).name != entry.file:
                raise CorruptDataError(f"line {number} of {path} names a file elsewhere: {entry.file}")
            entries[entry.step] = entry
        return entries
