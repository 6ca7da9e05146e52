"""Telling a null that somebody wrote from one that Arrow put there (case C5).

Arrow gives every struct of a column the union of all fields that any row has, and fills those that a row lacks with
null: a tool with parameter `city` comes back with `isbn: null` because another row's tool has `isbn`. Parquet can't
tell the two kinds of null apart, so this is the rule, applied to the prompt and tools columns of Parquet files:

1. A field that is null in every row of the file is kept: without a row that wrote it, it would not be there at all.
2. A field that has a value in some row is dropped where it is null: there it almost surely comes from the union.
3. Except `default` and `const` of a JSON schema that allows null ({"type": ["string", "null"]}, an anyOf with null,
   `nullable: true`): there null is a value, and it is kept. So is the content of a message that only calls tools.

JSON lines, and Parquet columns that hold such objects as JSON text, have no such doubt and keep every null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Path = tuple[str, ...]
PresentPaths = frozenset[Path]
"""Paths of fields that have a value in at least one row; list items add "[]" to the path."""

_NULL_IS_A_VALUE = ("default", "const")


def present_paths(column: Any) -> PresentPaths:
    """Paths under an Arrow column (array or chunked array) that hold a value in at least one row."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    found: set[Path] = set()
    for chunk in chunks:
        _collect(chunk, (), found)
    return frozenset(found)


def _collect(array: Any, path: Path, found: set[Path]) -> None:
    import pyarrow as pa

    if array.null_count == len(array):
        return
    found.add(path)
    kind = array.type
    if pa.types.is_struct(kind):
        # flatten(), unlike field(), takes the parent's nulls into account.
        for name, child in zip([field.name for field in kind], array.flatten(), strict=True):
            _collect(child, (*path, name), found)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        _collect(array.flatten(), (*path, "[]"), found)


def drop_foreign_nulls(value: Any, present: PresentPaths, path: Path = ()) -> Any:
    """`value` without the nulls of rule 2, to any depth."""
    if isinstance(value, Mapping):
        return {
            name: drop_foreign_nulls(item, present, (*path, name))
            for name, item in value.items()
            if item is not None or _is_genuine(name, value, present, path)
        }
    if isinstance(value, list):
        return [drop_foreign_nulls(item, present, (*path, "[]")) for item in value]
    return value


def _is_genuine(name: str, owner: Mapping[str, Any], present: PresentPaths, path: Path) -> bool:
    if (*path, name) not in present:
        return True
    if name == "content" and "role" in owner:
        return True
    return name in _NULL_IS_A_VALUE and _allows_null(owner)


def _allows_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind) or schema.get("nullable") is True:
        return True
    choices = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(isinstance(choice, Mapping) and _allows_null(choice) for choice in choices)
