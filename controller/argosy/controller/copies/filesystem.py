"""A folder on any file system that pyarrow or fsspec knows, by URL; what fails is tried again a few times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from argosy.types.errors import AbortedError, ConfigError, StorageError

log = logging.getLogger(__name__)
Result = TypeVar("Result")

ATTEMPTS = 4
FIRST_PAUSE_S = 0.5
"""Before the second attempt; the pauses double."""
SILENCE_S = 10.0
"""Without a byte from S3, after which an attempt has failed."""
_BLOCK = 8 << 20
_FINAL = ("NO_SUCH_BUCKET", "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH")
"""In what S3 says: it would say so again."""
_WHOLE_ON_CLOSE = frozenset({"s3", "gcs", "abfs"})
"""Kinds of file systems on which a file is there when it is closed, whole, and not before."""


class RemoteFolder:
    """Small and large files below a URL.

    Raises ConfigError where nothing can be opened under such a URL, and StorageError when an operation has failed
    `ATTEMPTS` times; both name the URL, without what it says of credentials.
    """

    def __init__(self, url: str) -> None:
        self.name = _without_secrets(url)
        self._fs, self._root = _open(url, self.name)
        self.goes_on: Callable[[], bool] = lambda: True
        """Asked between the blocks of what is sent, and before another attempt; AbortedError once it says no."""
        self._direct = str(getattr(self._fs, "type_name", "")) in _WHOLE_ON_CLOSE

    def read(self, key: str) -> bytes:
        """The content of a small file. FileNotFoundError if there is none."""

        def do() -> bytes:
            with self._fs.open_input_stream(self._path(key)) as file:
                return bytes(file.read())

        return self._retried(f"read {key}", do)

    def fetch(self, key: str, to: Path) -> None:
        """Copy a file into a local one."""

        def do() -> None:
            with self._fs.open_input_stream(self._path(key)) as source, to.open("wb") as sink:
                while block := source.read(_BLOCK):
                    sink.write(block)

        self._retried(f"read {key}", do)

    def write(self, key: str, data: bytes) -> None:
        """Make a small file, or replace it, in one moment."""

        def do() -> None:
            with self._put(key) as sink:
                sink.write(data)
            self._settle(key)

        self._retried(f"write {key}", do)

    def send(self, path: Path, key: str) -> None:
        """Copy a local file here, in one moment."""

        def do() -> None:
            with path.open("rb") as source:
                try:
                    with self._put(key) as sink:
                        while block := source.read(_BLOCK):
                            sink.write(block)
                            self._go_on()
                except Exception:
                    self._take_away(key)  # a stream that is closed after a failure makes a file of what it has got
                    raise
            self._settle(key)

        self._retried(f"write {key}", do)

    def sizes(self, folder: str) -> dict[str, int]:
        """Name → bytes of the files in a folder; empty if there is no such folder."""
        from pyarrow.fs import FileSelector, FileType

        def do() -> dict[str, int]:
            found = self._fs.get_file_info(FileSelector(self._path(folder), allow_not_found=True))
            return {str(one.base_name): int(one.size) for one in found if one.type == FileType.File}

        return self._retried(f"list {folder}", do)

    def remove(self, key: str) -> None:
        """Delete a file; one that is gone is no failure."""

        def do() -> None:
            with suppress(FileNotFoundError):
                self._fs.delete_file(self._path(key))

        self._retried(f"delete {key}", do)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _put(self, key: str) -> Any:
        path = self._path(key)
        if self._direct:
            return self._fs.open_output_stream(path)
        parent = path.rpartition("/")[0]
        if not self._is_there(parent):  # some kinds refuse to make one that is there
            self._fs.create_dir(parent, recursive=True)
        return self._fs.open_output_stream(f"{path}.partial")

    def _settle(self, key: str) -> None:
        if self._direct:
            return
        path = self._path(key)
        try:
            self._fs.move(f"{path}.partial", path)
        except Exception:
            if not self._is_there(path):
                raise
            self._fs.delete_file(path)  # some kinds, as HDFS, never replace
            self._fs.move(f"{path}.partial", path)

    def _is_there(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._fs.get_file_info(path).type != FileType.NotFound)

    def _take_away(self, key: str) -> None:
        with suppress(OSError):  # the failure before is raised; and by its size it is known for not whole
            self._fs.delete_file(self._path(key) if self._direct else f"{self._path(key)}.partial")

    def _go_on(self) -> None:
        if not self.goes_on():
            raise AbortedError(f"what was under way to {self.name} is given up")

    def _retried(self, what: str, do: Callable[[], Result]) -> Result:
        for attempt in range(ATTEMPTS):
            try:
                return do()
            except (FileNotFoundError, AbortedError):
                raise
            except Exception as error:  # fsspec's packages raise their own: ftplib.Error, botocore's, aiohttp's
                if any(word in str(error) for word in _FINAL):
                    raise StorageError(f"could not {what} in {self.name}: {error}") from error
                if attempt + 1 == ATTEMPTS:
                    raise StorageError(f"could not {what} in {self.name}, tried {ATTEMPTS} times: {error}") from error
                log.warning("could not %s in %s, once more: %s", what, self.name, error)
                self._go_on()
                time.sleep(FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")


def _open(url: str, name: str) -> tuple[Any, str]:
    """pyarrow's own file systems (s3, gs, abfs, hdfs, file), else what fsspec knows."""
    import pyarrow
    from pyarrow import fs

    try:
        found, path = fs.FileSystem.from_uri(url)
    except pyarrow.ArrowInvalid as error:
        found, path = _by_fsspec(url, name, error)
    except OSError as error:
        raise ConfigError(f"can't open {name}: {error}") from error
    return _bounded(found), str(path).rstrip("/")


def _bounded(found: Any) -> Any:
    """With time-outs: S3 waits 100 s for a server that stands still by itself, four times over, and GCS 15 minutes."""
    from pyarrow import fs

    if isinstance(found, fs.GcsFileSystem):
        options = dict(found.__reduce__()[1][0])
        return fs.GcsFileSystem(**options | {"retry_time_limit": timedelta(seconds=SILENCE_S)})
    if not isinstance(found, fs.S3FileSystem):
        return found
    options = dict(found.__reduce__()[1][0])  # a URL has no place for these, and a file system can't be changed
    again = fs.AwsStandardS3RetryStrategy(max_attempts=2)
    return fs.S3FileSystem(
        **options | {"connect_timeout": SILENCE_S, "request_timeout": SILENCE_S, "retry_strategy": again}
    )


def _by_fsspec(url: str, name: str, why_not: Exception) -> tuple[Any, str]:
    from pyarrow import fs

    try:
        import fsspec
        import fsspec.implementations.memory
    except ImportError:
        raise ConfigError(
            f"can't open {name}: {why_not}; for other kinds of file systems install fsspec and its package for them"
        ) from None
    try:
        found, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(f"can't open {name}: {error}") from error
    if isinstance(found, fsspec.implementations.memory.MemoryFileSystem):
        raise ConfigError(f"can't keep anything in {name}: it ends with this process")
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


def _without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password and query."""
    scheme, separator, rest = url.partition("://")
    place = rest.partition("?")[0]
    host, slash, path = place.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
