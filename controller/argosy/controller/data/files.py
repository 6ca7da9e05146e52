"""Which files a `data.train_files` or `data.val_files` value names."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from argosy.types.errors import InvalidInputError

SUFFIXES = (".parquet", ".json", ".jsonl", ".ndjson")
"""What can be read: Parquet, a JSON array or JSON lines."""


def resolve_files(value: str | Sequence[str], key: str) -> list[Path]:
    """Existing files in the order given; a glob's matches are sorted by name, and no file is read twice.

    Args:
        value: One path or glob, or a list of them; `~` is the home folder.
        key: The configuration key, for messages ("data.train_files").

    Raises:
        InvalidInputError: Nothing named, no such file, a glob without a match, or a kind that can't be read.
    """
    names = [value] if isinstance(value, str) else [str(name) for name in value or ()]
    names = [name for name in names if name]
    if not names:
        raise InvalidInputError(
            f"{key} names no file; set it to Parquet or JSON lines (`argosy data make` writes a pair to try)"
        )
    found = [path for name in names for path in _matches(name, key)]
    return list(dict.fromkeys(found))


def _matches(name: str, key: str) -> list[Path]:
    if "://" in name:
        raise InvalidInputError(f"{key}: {name} is a remote address; copy the file to a local path first")
    path = Path(name).expanduser()
    if path.is_dir():
        raise InvalidInputError(f"{key}: {path} is a folder; name its files, for example {path}/*.parquet")
    # A file whose own name holds [ or * is taken as it is before it is read as a glob.
    paths = [path] if path.is_file() else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    paths = [match for match in paths if match.is_file()]
    if not paths:
        what = "no file matches" if glob.has_magic(str(path)) else "there is no file"
        raise InvalidInputError(f"{key}: {what} {path}{_neighbours(path)}")
    for match in paths:
        if match.suffix.lower() not in SUFFIXES:
            raise InvalidInputError(f"{key}: can't read {match}: its name must end in one of {', '.join(SUFFIXES)}")
    return paths


def _neighbours(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (the folder {path.parent} does not exist)"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix.lower() in SUFFIXES)
    return f" (that folder holds {', '.join(names[:5])}{' …' if len(names) > 5 else ''})" if names else ""
