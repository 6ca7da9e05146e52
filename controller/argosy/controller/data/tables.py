"""One dataset file as rows that are decoded when asked for, so that a big set costs its own bytes only.

Parquet rows come from an Arrow table; JSON rows keep their text. Every row of the file is a row here, whatever its row
groups, string widths or nulls (case C6).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from argosy.controller.data.nulls import PresentPaths, drop_foreign_nulls, present_paths
from argosy.types.errors import InvalidInputError

_READ_ROWS = 4096
"""Rows per Arrow batch: small enough that no nested column is split in chunks inside a batch."""


class RowTable(Protocol):
    """The rows of one file."""

    path: Path

    def __len__(self) -> int: ...

    @property
    def columns(self) -> list[str]:
        """Names of the file's columns; of the first row for JSON."""
        ...

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Rows start … stop-1 as plain Python values."""
        ...


def read_table(path: Path, columns: Sequence[str], structured: Sequence[str]) -> RowTable:
    """Open one file.

    Args:
        path: Parquet, JSON or JSON lines.
        columns: The columns that are wanted; others (images, for instance) are not read from Parquet.
        structured: Those among them that hold objects of varying fields, where Parquet's nulls may mean "absent".

    Raises:
        InvalidInputError: The file is empty or is not what its name says.
    """
    if path.stat().st_size == 0:
        raise InvalidInputError(f"{path} is empty (0 bytes)")
    if path.suffix.lower() == ".parquet":
        return ParquetTable(path, columns, structured)
    return JsonTable(path)


class ParquetTable:
    """Rows of a Parquet file."""

    def __init__(self, path: Path, columns: Sequence[str], structured: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                self._columns = [str(name) for name in file.schema_arrow.names]
                wanted = [name for name in columns if name in self._columns]
                batches = list(file.iter_batches(batch_size=_READ_ROWS, columns=wanted))
                schema = pa.schema([file.schema_arrow.field(name) for name in wanted])
                expected = file.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InvalidInputError(f"{path} can't be read as Parquet: {error}") from error
        self._table = pa.Table.from_batches(batches, schema) if batches else schema.empty_table()
        if wanted and self._table.num_rows != expected:
            raise InvalidInputError(f"{path} says it has {expected} rows, and {self._table.num_rows} could be read")
        self._length = int(expected)
        self._present: dict[str, PresentPaths] = {
            name: present_paths(self._table.column(name)) for name in structured if name in wanted
        }

    def __len__(self) -> int:
        return self._length

    @property
    def columns(self) -> list[str]:
        """Names of the file's columns."""
        return self._columns

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Rows start … stop-1, without the nulls that only Arrow's union of fields put there (case C5)."""
        for row in self._table.slice(start, stop - start).to_pylist(maps_as_pydicts="lossy"):
            for name, present in self._present.items():
                row[name] = drop_foreign_nulls(row[name], present)
            yield row


class JsonTable:
    """Rows of a JSON array or of JSON lines. Nothing is unified, so every null is one that somebody wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (UnicodeDecodeError, OSError) as error:
            raise InvalidInputError(f"{path} can't be read as JSON text: {error}") from error
        if text.lstrip().startswith("["):
            self._rows: list[str] | list[Any] = _parse(text, f"{path}")
            self._lines: list[int] | None = None
        else:
            # Only \n ends a JSON line: str.splitlines would cut at U+2028 inside a string.
            numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
            self._rows = [line for _, line in numbered]
            self._lines = [number for number, _ in numbered]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> list[str]:
        """Keys of the first row."""
        return list(next(self.rows(0, 1), {}))

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Rows start … stop-1."""
        for index in range(start, min(stop, len(self))):
            value = self._rows[index]
            where = f"{self.path}, row {index}"
            if self._lines is not None:
                where = f"{self.path}, line {self._lines[index]}"
                value = _parse(str(value), where)
            if not isinstance(value, Mapping):
                raise InvalidInputError(f"{where}: expected one JSON object per row, got {type(value).__name__}")
            yield dict(value)


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{where}: not valid JSON: {error}") from error
