"""Writes a record, step by step; `store` says what it consists of."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from argosy.controller.fence import OPEN, Fence
from argosy.controller.files import write_atomically
from argosy.controller.recording.rows import mean_score, to_table
from argosy.controller.recording.store import FORMAT, HEAD, INDEX, META, Record, RecordedStep, RecordHead, StepEntry
from argosy.types.errors import ConfigError, storage_error

log = logging.getLogger(__name__)

_CODEC = "zstd"
_ROWS_PER_GROUP = 4096
"""Rows that Parquet encodes at a time: bounds the memory of that."""


class RecordWriter:
    """Writes the steps of one run. One at a time; not for several threads at once.

    Args:
        folder: The record; made if it isn't there.
        head: What is recorded. A record of something else is not added to.
        after_step: Steps done when this start begins; what the folder has beyond them is dropped.
        fence: Of the run's folder: in a fleet only the newest leader adds to the record.

    Raises:
        ConfigError: the folder holds another record.
        StorageError: the folder can't be written.
        FencedError: here and in `write`: another controller leads the run now.
    """

    def __init__(self, folder: Path, head: RecordHead, *, after_step: int = 0, fence: Fence = OPEN) -> None:
        self.folder = folder
        self._fence = fence
        self.size_bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, folder) from error
        kept, dropped = self._keep(head, after_step) if (folder / HEAD).exists() else ([], [])
        write_atomically(folder / HEAD, json.dumps({"format": FORMAT} | asdict(head), indent=1).encode(), fence)
        write_atomically(folder / INDEX, b"".join(_line(entry) for entry in kept), fence)
        with fence.writing():
            for entry in dropped:
                (folder / entry.file).unlink(missing_ok=True)
        self.size_bytes = sum(entry.size_bytes for entry in kept)

    def _keep(self, head: RecordHead, after_step: int) -> tuple[list[StepEntry], list[StepEntry]]:
        """What of the record is there to stay, and what this start does again."""
        found = Record(self.folder)
        if after_step and found.head.run_id != head.run_id:
            raise ConfigError(
                f"argosy.record.path: {self.folder} holds the record of run {found.head.run_id}, and this is "
                f"{head.run_id} from step {after_step} on: name another folder"
            )
        if not after_step and found.steps and found.head.run_id != head.run_id:
            raise ConfigError(
                f"argosy.record.path: {self.folder} already holds a record, of run {found.head.run_id} "
                f"({len(found.steps)} steps): name another folder, or remove it"
            )
        kept = [entry for step, entry in sorted(found.entries.items()) if step <= after_step]
        if kept and kept[-1].step < after_step:
            log.warning(
                "the record %s ends at step %d, and this start goes on after step %d: what is between is not in it, so "
                "it can be replayed up to there only",
                self.folder, kept[-1].step, after_step,
            )  # fmt: skip
        return kept, [entry for step, entry in found.entries.items() if step > after_step]

    def write(self, made: RecordedStep) -> StepEntry:
        """Write a step and enter it. Raises StorageError, FencedError."""
        record = made.record
        table = to_table(record).replace_schema_metadata({META: _meta(made)})
        path = self.folder / f"step-{record.step:08d}.parquet"
        digest, size = self._write_file(path, table)
        score = mean_score(table)
        entry = StepEntry(
            step=record.step,
            file=path.name,
            size_bytes=size,
            sha256=digest,
            prompt_count=len(record.prompts),
            sample_count=len(record.completions),
            token_count=sum(len(row.token_ids) for row in record.completions.values()),
            mean_score=None if score != score else score,
        )
        try:
            with self._fence.writing(), (self.folder / INDEX).open("ab") as file:
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_error(error, self.folder / INDEX) from error
        self.size_bytes += size
        return entry

    def _write_file(self, path: Path, table: pa.Table) -> tuple[str, int]:
        """Returns SHA-256 and bytes."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression=_CODEC, row_group_size=_ROWS_PER_GROUP)
        data = memoryview(sink.getvalue())
        write_atomically(path, data, self._fence)
        return hashlib.sha256(data).hexdigest(), len(data)


def _line(entry: StepEntry) -> bytes:
    return json.dumps(asdict(entry)).encode() + b"\n"


def _meta(made: RecordedStep) -> bytes:
    version = made.record.version
    return json.dumps({
        "step": made.record.step,
        "version": None if version is None else [version.lineage, version.step, version.digest],
        "metrics": dict(made.metrics),
        "sampler_state": dict(made.sampler_state),
        "reward_state": dict(made.reward_state),
    }).encode()  # fmt: skip
