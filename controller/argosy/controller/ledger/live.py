"""The live table: what is in flight, in SQLite (WAL), for `argosy ledger` and for whoever looks after a crash.

It follows the books in memory by a fraction of a second and is deleted by the next term, so that its size follows what
is in flight. Segments, and not this table, are what a successor goes on from. A thread writes it: with a hundred
thousand samples a step the event loop would stand still for seconds.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
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
_DELETE = "DELETE FROM samples WHERE sample_id=?"
FLUSH_AFTER_S = 0.25
"""From a change to its write, at most; longer where the disk is behind."""
ROWS_AT_ONCE = 4096
"""Of one write: the event loop makes the rows."""


class LiveTable:
    """Written by one controller term, read by anybody.

    Args:
        folder: Of the ledger.
        term: The controller's.
        thread: With one worker, which alone writes. Calls outside an event loop wait for it.
    """

    def __init__(self, folder: Path, term: int, thread: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._thread = thread
        self._waiting: dict[SampleId, Entry] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("live-term*.sqlite*"):
                leftover.unlink()  # of an earlier life
            path = folder / f"live-term{term}.sqlite"
            self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for statement in (*_PRAGMAS, _SCHEMA):
                self.database.execute(statement)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error, folder) from error

    def changed(self, entries: Iterable[Entry]) -> None:
        """These are written soon. Raises StorageError, also for a write before that went wrong."""
        self.raise_failure()
        for entry in entries:
            self._waiting[entry.sample] = entry
        self._flush_soon(FLUSH_AFTER_S)

    def forget(self, samples: Iterable[SampleId]) -> None:
        """These are about to be removed: what waits to be written of them need not be."""
        for sample in samples:
            self._waiting.pop(sample, None)

    def recall(self, entries: Iterable[Entry]) -> None:
        """They are not removed after all: take back `forget`."""
        self._waiting |= {entry.sample: entry for entry in entries}

    def remove(self, samples: Iterable[SampleId]) -> None:
        """These are in a segment now. Called in the writing thread. Raises StorageError."""
        self._many(_DELETE, [(str(sample),) for sample in samples])

    def raise_failure(self) -> None:
        """Raise what went wrong with a write, a StorageError as a rule."""
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Write what has changed, and wait for it. Raises StorageError."""
        self._stop_timer()
        while self._waiting:
            self._thread.submit(self._many, _UPSERT, self._take_rows()).result()
        self.raise_failure()

    def close(self) -> None:
        """Write what is left, as far as that is possible, and close the file."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._stop_timer()
            self._thread.shutdown()
            self.database.close()

    def _flush_soon(self, after_s: float) -> None:
        if not self._waiting or self._timer is not None or self._writing is not None:
            return
        try:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._write_some)
        except RuntimeError:  # nobody's loop: there is no later
            self.flush()

    def _write_some(self) -> None:
        self._timer = None
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(self._thread, self._many, _UPSERT, self._take_rows())
            self._writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if writing.cancelled():
            return
        self._failure = writing.exception()  # nobody waits here: the next change raises it
        if self._failure is None:
            self._flush_soon(0.0 if len(self._waiting) >= ROWS_AT_ONCE else FLUSH_AFTER_S)

    def _take_rows(self) -> list[tuple[Any, ...]]:
        """Some of those that wait, as they are now."""
        some = list(islice(self._waiting, ROWS_AT_ONCE))
        return [self._waiting.pop(sample).values() for sample in some]

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
