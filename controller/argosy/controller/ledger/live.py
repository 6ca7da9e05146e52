"""The live table: what is in flight, in SQLite (WAL), for `argosy ledger` and for whoever looks after a crash.

It follows the books in memory by a fraction of a second and is deleted by the next term, so that its size follows what
is in flight. Segments, and not this table, are what a successor goes on from.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from argosy.controller.ledger.entry import COLUMNS, Entry
from argosy.types.errors import StorageError, storage_error
from argosy.types.ids import SampleId

_TYPES = {"prompt_index": "INTEGER", "dispatch_count": "INTEGER", "token_count": "INTEGER", "trained_step": "INTEGER"}
_REAL = ("score", "drawn_at", "dispatched_at", "completed_at", "scored_at", "ended_at")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS samples ("
    + ", ".join(f"{name} {_TYPES.get(name, 'REAL' if name in _REAL else 'TEXT')}" for name in COLUMNS)
    + ", PRIMARY KEY (sample_id)) STRICT, WITHOUT ROWID"
)
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA journal_size_limit=16777216",  # bytes that the WAL keeps after a large transaction
)
_UPSERT = f"INSERT OR REPLACE INTO samples ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
FLUSH_AFTER_S = 0.25
FLUSH_AT = 1000
"""Changed rows that are written at once, without waiting for `FLUSH_AFTER_S`."""


class LiveTable:
    """Written by one controller term, read by anybody."""

    def __init__(self, folder: Path, term: int) -> None:
        self._folder = folder
        self._waiting: dict[SampleId, Entry] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._failure: StorageError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("live-term*.sqlite*"):
                leftover.unlink()  # of an earlier life
            self.database = sqlite3.connect(folder / f"live-term{term}.sqlite", isolation_level=None)
            for statement in (*_PRAGMAS, _SCHEMA):
                self.database.execute(statement)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error, folder) from error

    def changed(self, entries: Iterable[Entry]) -> None:
        """These are written soon. Raises StorageError, also for a write before that went wrong."""
        if self._failure is not None:
            raise self._failure
        for entry in entries:
            self._waiting[entry.sample] = entry
        if len(self._waiting) >= FLUSH_AT:
            self.flush()
        elif self._timer is None and self._waiting:
            try:
                self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self._flush_later)
            except RuntimeError:  # nobody's loop: there is no later
                self.flush()

    def flush(self) -> None:
        """Write what has changed. Raises StorageError."""
        self._stop_timer()
        rows = [tuple(entry.row().values()) for entry in self._waiting.values()]
        self._many(_UPSERT, rows)
        self._waiting.clear()

    def remove(self, samples: Iterable[SampleId]) -> None:
        """These are in a segment now. Raises StorageError."""
        gone = list(samples)
        for sample in gone:
            self._waiting.pop(sample, None)
        self.flush()
        self._many("DELETE FROM samples WHERE sample_id=?", [(str(sample),) for sample in gone])

    def close(self) -> None:
        """Write what is left, as far as that is possible, and close the file."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._stop_timer()
            self.database.close()

    def _flush_later(self) -> None:
        self._timer = None
        try:
            self.flush()
        except StorageError as error:  # nobody waits here: the next change raises it
            self._failure = error

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        try:
            self.database.execute("BEGIN")
            self.database.executemany(statement, rows)
            self.database.execute("COMMIT")
        except sqlite3.Error as error:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
            raise storage_error(error, self._folder) from error


def read_live(folder: Path) -> list[dict[str, Any]]:
    """Rows of the newest term's live table; [] where there is none. The run may be under way.

    Raises StorageError if the table can't be read.
    """
    found = sorted(folder.glob("live-term*.sqlite"), key=lambda path: int(path.stem.removeprefix("live-term")))
    if not found:
        return []
    database: sqlite3.Connection | None = None
    try:
        database = sqlite3.connect(f"{found[-1].absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
        cursor = database.execute(f"SELECT {', '.join(COLUMNS)} FROM samples ORDER BY sample_id")
        return [dict(zip(COLUMNS, row, strict=True)) for row in cursor.fetchall()]
    except sqlite3.Error as error:
        raise StorageError(f"can't read the live table {found[-1]}: {error}") from error
    finally:
        if database is not None:
            database.close()
