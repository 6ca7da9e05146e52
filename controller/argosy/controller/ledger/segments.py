"""Segments: what each step finished, one immutable gzip file of JSON lines a step.

    step_00000007.jsonl.gz
        {"sample_id": "e0-p12-k0-a0", "state": "trained", …}        one line for each sample that the step finished
        {"end": true, "step": 7, "previous": "…", "drawn": 96, "final": 64, "closed": …, "open": …, "sha256": "…"}

The last line holds the totals of the lineage so far, which samples are finished (`closed`) and which are in flight
(`open`), and the digest of the segment before it: a chain from the first step to the newest, which any change breaks.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.controller.fence import OPEN, Fence
from argosy.controller.files import write_atomically
from argosy.controller.ledger.entry import Entry
from argosy.controller.ledger.idset import IdSet
from argosy.types.errors import ConfigError, CorruptDataError

FORMAT = 2
_ENCODER = json.JSONEncoder(sort_keys=True)
_COMPRESSION = 1
"""gzip's fastest: a tenth of the size already."""


@dataclass(frozen=True, slots=True)
class LedgerCut:
    """Where the ledger stood at a checkpoint."""

    step: int
    """Last committed step; 0 = nothing yet."""
    sha256: str
    """Of that step's segment; empty at step 0."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One committed step."""

    step: int
    rows: Sequence[dict[str, Any]]
    previous: str
    """Digest of the segment before; empty for the first of a run."""
    drawn: int
    """Samples that the lineage ever drew."""
    final: int
    """Samples that the lineage has finished, this step's among them."""
    closed: IdSet
    """Which those are."""
    open: IdSet
    """Which were in flight at the commit."""
    sha256: str
    counts: Mapping[str, int]
    """Rows by state."""


def segment_path(folder: Path, step: int) -> Path:
    """Where a step's segment lies."""
    return folder / f"step_{step:08d}.jsonl.gz"


def steps_in(folder: Path) -> list[int]:
    """The committed steps, in order."""
    return sorted(int(path.name[5:13]) for path in folder.glob("step_????????.jsonl.gz"))


def write_segment(
    folder: Path, step: int, entries: Iterable[Entry], end: Mapping[str, Any], fence: Fence = OPEN
) -> str:
    """Write a step's segment, durably; returns its digest. Raises StorageError, FencedError."""
    lines = [_ENCODER.encode(entry.row()) for entry in entries]
    body = "".join(line + "\n" for line in lines).encode()
    facts = {"end": True, "format": FORMAT, "step": step, "samples": len(lines), **end}
    digest = _digest(body, facts)
    last = json.dumps(facts | {"sha256": digest}, sort_keys=True).encode()
    write_atomically(segment_path(folder, step), gzip.compress(body + last + b"\n", _COMPRESSION, mtime=0), fence)
    return digest


def load_segment(folder: Path, step: int) -> Segment:
    """A committed step.

    Raises:
        CorruptDataError: its file is missing, cut or changed.
        ConfigError: it is of an older release.
    """
    path = segment_path(folder, step)
    if not path.exists():
        if path.with_suffix("").exists():
            raise ConfigError(
                f"{path.with_suffix('')} is of a ledger as older releases wrote it: finish the run with that release, "
                "or start from its checkpoint in a new folder (trainer.resume_mode=resume_path)"
            )
        raise CorruptDataError(f"ledger segment {path} is missing")
    try:
        *lines, last = gzip.decompress(path.read_bytes()).splitlines(keepends=True) or [b"{}"]
        end = json.loads(last)
        digest = end.pop("sha256")
        if end["format"] != FORMAT or end["step"] != step or digest != _digest(b"".join(lines), end):
            raise CorruptDataError(f"ledger segment {path} is damaged: its checksum does not match")
        rows = [json.loads(line) for line in lines]
        return Segment(
            step, rows, end["previous"], end["drawn"], end["final"], IdSet.from_plain(end["closed"]),
            IdSet.from_plain(end["open"]), digest, end["counts"],
        )  # fmt: skip
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"ledger segment {path} is damaged: {error}") from error


def read_segment(folder: Path, step: int) -> list[dict[str, Any]]:
    """The rows of a committed step. Raises CorruptDataError if the file was changed or cut."""
    return list(load_segment(folder, step).rows)


def rewind(folder: Path, cut: LedgerCut, lineage: str) -> int:
    """Set aside the segments after a checkpoint's cut, under `abandoned/<lineage>`; returns how many there were.

    A cut that was itself abandoned (somebody went back further, and now comes again) gets its segments back.
    Raises CorruptDataError if the cut's own segment is missing or damaged.
    """
    if cut.step and cut.sha256:
        _bring_back(folder, cut, lineage)
    later = [step for step in steps_in(folder) if step > cut.step]
    for step in later:
        _set_aside(folder, step, lineage)
    return len(later)


def _bring_back(folder: Path, cut: LedgerCut, lineage: str) -> None:
    """Make the chain that ends with the cut the one in `folder`. Oldest first: whoever is killed in the middle has not
    written the cut's own segment yet, and so begins again at the next start."""
    lacking: list[tuple[int, Path]] = []
    step, wanted = cut.step, cut.sha256
    while wanted:
        present = segment_path(folder, step).exists()
        if present and load_segment(folder, step).sha256 == wanted:
            break
        found = _find_abandoned(folder, step, wanted)
        if found is None:
            path = segment_path(folder, step)
            what = "is not the one that the checkpoint recorded" if present else "is missing"
            raise CorruptDataError(f"ledger segment {path} {what}")
        lacking.append((step, found))
        step, wanted = step - 1, load_segment(found, step).previous
    for step, found in reversed(lacking):
        content = segment_path(found, step).read_bytes()
        if segment_path(folder, step).exists():
            _set_aside(folder, step, lineage)
        write_atomically(segment_path(folder, step), content)


def _find_abandoned(folder: Path, step: int, digest: str) -> Path | None:
    for abandoned in sorted((folder / "abandoned").glob("*")):
        with suppress(CorruptDataError):  # a damaged one is not the one that is looked for
            if segment_path(abandoned, step).exists() and load_segment(abandoned, step).sha256 == digest:
                return abandoned
    return None


def _set_aside(folder: Path, step: int, lineage: str) -> None:
    target = segment_path(folder / "abandoned" / lineage, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    segment_path(folder, step).replace(target)


def _digest(body: bytes, end: Mapping[str, Any]) -> str:
    return hashlib.sha256(body + json.dumps(dict(end), sort_keys=True).encode()).hexdigest()
