"""The ledger accounts for every sample: drawn, dispatched, completed, scored, and then trained at step s, used as a
baseline, or dropped and why.

The live tables are SQLite (WAL), local to one controller term. When a step ends, `commit_step` closes its accounts:
every sample drawn for it must be in one of those last three states, and the rows are written as one immutable,
checksummed segment to the run folder (`ledger/step_00000007.jsonl`), from which a successor on another machine can go
on.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.controller.files import write_atomically
from argosy.types.errors import ArgosyError, CorruptDataError, storage_error
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Completion, Scored, ScoreResult

_SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    sample_id TEXT PRIMARY KEY, step INTEGER NOT NULL, prompt_index INTEGER NOT NULL, state TEXT NOT NULL,
    member TEXT, dispatch_count INTEGER NOT NULL DEFAULT 0, token_count INTEGER, finish_reason TEXT,
    first_version TEXT, last_version TEXT, outcome TEXT, score REAL, trained_step INTEGER, reason TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_step ON samples (step, state);
"""

FINAL_STATES = ("trained", "baseline", "dropped")


class LedgerError(ArgosyError):
    """The books do not balance: a sample was lost or counted twice. Training must not go on."""


@dataclass(frozen=True, slots=True)
class LedgerCut:
    """Where the ledger stood at a checkpoint."""

    step: int
    """Last committed step; 0 = nothing yet."""
    sha256: str
    """Of that step's segment; empty at step 0."""


class Ledger:
    """The books of one run, written by one controller term."""

    def __init__(self, folder: Path, term: int) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("live-term*.sqlite*"):
                leftover.unlink()  # of an earlier life: what it had finished is in the segments, the rest is drawn anew
            self._database = sqlite3.connect(folder / f"live-term{term}.sqlite", isolation_level=None)
            self._database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error, folder) from error

    def close(self) -> None:
        """Release the live tables; committed segments stay."""
        self._database.close()

    def drawn(self, step: int, samples: Iterable[tuple[SampleId, int]]) -> None:
        """Samples (id, dataset row) enter the books of a step. A repeated id is a LedgerError."""
        rows = [(str(sample), step, index) for sample, index in samples]
        try:
            self._many("INSERT INTO samples (sample_id, step, prompt_index, state) VALUES (?, ?, ?, 'drawn')", rows)
        except sqlite3.IntegrityError as error:
            raise LedgerError(f"step {step} draws a sample that is already in the books: {error}") from error

    def dispatched(self, samples: Iterable[SampleId], member: str) -> None:
        """Samples were sent to a rollout server."""
        self._many(
            "UPDATE samples SET state='dispatched', member=?, dispatch_count=dispatch_count+1 WHERE sample_id=?",
            [(member, str(sample)) for sample in samples],
        )

    def completed(self, completions: Sequence[Completion]) -> None:
        """Answers came back whole."""
        self._many(
            "UPDATE samples SET state='completed', token_count=?, finish_reason=?, first_version=?, last_version=?"
            " WHERE sample_id=?",
            [
                (
                    len(completion.token_ids),
                    completion.finish_reason.value,
                    completion.versions[0].version.short if completion.versions else None,
                    completion.versions[-1].version.short if completion.versions else None,
                    str(completion.sample_id),
                )
                for completion in completions
            ],
        )

    def scored(self, results: Sequence[ScoreResult]) -> None:
        """Outcomes arrived, failures and abstentions included."""
        self._many(
            "UPDATE samples SET state='scored', outcome=?, score=?, reason=? WHERE sample_id=?",
            [(*_outcome_columns(result), str(result.sample_id)) for result in results],
        )

    def trained(self, samples: Iterable[SampleId], step: int) -> None:
        """The optimizer step that saw these samples is done."""
        self._many(
            "UPDATE samples SET state='trained', trained_step=? WHERE sample_id=?",
            [(step, str(sample)) for sample in samples],
        )

    def baseline(self, samples: Iterable[SampleId]) -> None:
        """Greedy answers whose rewards the others were compared with; they are not trained themselves (ReMax)."""
        self._many("UPDATE samples SET state='baseline' WHERE sample_id=?", [(str(sample),) for sample in samples])

    def dropped(self, samples: Iterable[SampleId], reason: str) -> None:
        """Samples that will not be trained, with the reason that a person will read."""
        self._many(
            "UPDATE samples SET state='dropped', reason=? WHERE sample_id=?",
            [(reason, str(sample)) for sample in samples],
        )

    def counts(self, step: int) -> dict[str, int]:
        """Samples of a step by state."""
        query = "SELECT state, COUNT(*) FROM samples WHERE step=? GROUP BY state"
        return dict(self._database.execute(query, (step,)).fetchall())

    def commit_step(self, step: int) -> LedgerCut:
        """Close a step: check that every sample drawn for it is accounted for, and write its immutable segment."""
        counts = self.counts(step)
        open_states = {state: count for state, count in counts.items() if state not in FINAL_STATES}
        if open_states:
            raise LedgerError(f"step {step} ends with samples that are neither trained nor dropped: {open_states}")
        cursor = self._database.execute("SELECT * FROM samples WHERE step=? ORDER BY sample_id", (step,))
        names = [column[0] for column in cursor.description]
        lines = [json.dumps(dict(zip(names, row, strict=True)), sort_keys=True) for row in cursor.fetchall()]
        body = "".join(line + "\n" for line in lines).encode()
        digest = hashlib.sha256(body).hexdigest()
        end = json.dumps({"end": True, "step": step, "samples": len(lines), "counts": counts, "sha256": digest})
        write_atomically(segment_path(self._folder, step), body + end.encode() + b"\n")
        # The segment is the record from here on; the live tables hold only what is under way, so they stay small.
        self._delete_until(step)
        return LedgerCut(step, digest)

    def _delete_until(self, step: int) -> None:
        try:
            self._database.execute("DELETE FROM samples WHERE step<=?", (step,))
        except sqlite3.OperationalError as error:
            raise storage_error(error, self._folder) from error

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        try:
            self._database.execute("BEGIN")
            changed = self._database.executemany(statement, rows).rowcount
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise storage_error(error, self._folder) from error
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        if changed != len(rows):
            raise LedgerError(
                f"{len(rows) - changed} of {len(rows)} samples are not in the books: {statement.split()[0]}"
            )


def segment_path(folder: Path, step: int) -> Path:
    """Where a step's segment lies."""
    return folder / f"step_{step:08d}.jsonl"


def read_segment(folder: Path, step: int) -> list[dict[str, Any]]:
    """The rows of a committed step. Raises CorruptDataError if the file was changed or cut."""
    path = segment_path(folder, step)
    *lines, last = path.read_bytes().splitlines(keepends=True) or [b"{}"]
    end = json.loads(last)
    if not end.get("end") or end["sha256"] != hashlib.sha256(b"".join(lines)).hexdigest():
        raise CorruptDataError(f"ledger segment {path} is damaged: its checksum does not match")
    return [json.loads(line) for line in lines]


def rewind(folder: Path, cut: LedgerCut, lineage: str) -> int:
    """Set aside the segments after a checkpoint's cut, under `abandoned/<lineage>`; returns how many there were.

    Raises CorruptDataError if the cut's own segment is missing or differs from what the checkpoint recorded.
    """
    if cut.step and cut.sha256:
        path = segment_path(folder, cut.step)
        if not path.exists():
            raise CorruptDataError(f"the checkpoint's ledger segment {path} is missing")
        read_segment(folder, cut.step)
        if json.loads(path.read_bytes().splitlines()[-1])["sha256"] != cut.sha256:
            raise CorruptDataError(f"ledger segment {path} is not the one that the checkpoint recorded")
    later = [path for path in sorted(folder.glob("step_*.jsonl")) if int(path.stem.removeprefix("step_")) > cut.step]
    for path in later:
        target = folder / "abandoned" / lineage / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    return len(later)


def _outcome_columns(result: ScoreResult) -> tuple[str, float | None, str | None]:
    match result.outcome:
        case Scored(score=score):
            return "scored", float(score), None
        case Abstained(reason=reason):
            return "abstained", None, reason
        case failed:
            return "failed", None, f"{failed.reason}: {failed.message}"
