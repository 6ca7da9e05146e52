"""Writing links of a `chain`: built beside their place, synced, moved there whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from argosy.types.errors import AbortedError, StorageError, storage_error
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightsManifest
from argosy.weightsync.chain import (
    BASE,
    DELTA,
    PARTIAL,
    RECORD,
    Chain,
    ChainSettings,
    Link,
    LinkFile,
    chains_to,
    link_name,
    next_sequence,
    prune,
    read_links,
    write_record,
)
from argosy.weightsync.crc import crc32, to_hex
from argosy.weightsync.tensors import tensor_over

if TYPE_CHECKING:
    import torch

    from argosy.weightsync.delta import Delta, DeltaRecord
    from argosy.weightsync.snapshot import Snapshot

SHARD_BYTES = 1 << 30
"""Largest weights file, but for a tensor that is larger by itself: a deadline is looked at between files."""
RECORD_HEADER = struct.Struct("<QIII")
"""Before each delta record in a file: offset in the tensor, bytes it stands for, bytes of the record, crc32 of it."""

WRITER_LOCK = ".writer.lock"
"""A file in the folder that is locked while somebody writes there; the system lets it go with its process."""

_WRITING = threading.Lock()
"""One link at a time in this process: two writers of one version would number theirs alike."""
_LOOK_S = 0.05
"""Between two looks at `stop`, of one that waits for the writer before it."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Of file systems without file locks: there the folder must be told apart by hand, as docs/weights.md says."""


def publish(folder: Path, snapshot: Snapshot, settings: ChainSettings, stop: threading.Event) -> list[Link]:
    """Make a chain to the snapshot's version, and remove what no chain needs. Blocks; returns the links written.

    With a delta whose base version is in the folder, the delta is written; and the whole version, if there is no such
    delta or the chain would grow over `base_every` links. A version that is there already is read back: if no chain to
    it is sound, it is written whole.

    Raises:
        StorageError: the disk is full or can't be written, or another process writes to the folder. What was there
            before is as it was.
        AbortedError: `stop` was set, also while an earlier writer of this process hung.
    """
    with _first_of_process(stop):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _only_writer(folder):
                written = [_write(folder, snapshot, kind, stop) for kind in _needed(folder, snapshot, settings, stop)]
                prune(folder, settings.keep)
        except OSError as error:
            raise _failed(error, folder) from error
        return written


@contextlib.contextmanager
def _first_of_process(stop: threading.Event) -> Iterator[None]:
    """An earlier writer may hang on a dead file server: who waits for it still keeps its own deadline."""
    while not _WRITING.acquire(timeout=_LOOK_S):
        _check(stop)
    try:
        yield
    finally:
        _WRITING.release()


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Two trainers in one folder would remove each other's half-written links and old versions."""
    descriptor = os.open(folder / WRITER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError(
                f"another process writes weights to {folder} just now: give each trainer a folder of its own, by "
                "argosy.weight_sync.disk_path"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def _needed(folder: Path, snapshot: Snapshot, settings: ChainSettings, stop: threading.Event) -> list[str]:
    """Kinds of the links that the folder lacks."""
    from argosy.weightsync.chain_reader import sound_chain

    def guard(work: Callable[[], None]) -> None:
        _check(stop)
        work()

    links = read_links(folder)
    if any(link.version == snapshot.manifest.version for link in links):
        return [] if sound_chain(links, snapshot.manifest, guard) else [BASE]
    return _kinds(links, snapshot.delta, settings)


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise AbortedError("writing the weights was given up: its deadline has passed")


def _kinds(links: list[Link], delta: Delta | None, settings: ChainSettings) -> list[str]:
    chain: Chain = next(iter(chains_to(links, delta.base)), ()) if delta is not None else ()
    if not chain:
        return [BASE]
    return [DELTA] if len(chain) < settings.base_every else [DELTA, BASE]


def _write(folder: Path, snapshot: Snapshot, kind: str, stop: threading.Event) -> Link:
    from safetensors import SafetensorError

    manifest = snapshot.manifest
    sequence = next_sequence(folder)
    place = folder / link_name(sequence, kind, manifest.version)
    partial = folder / f"{PARTIAL}{place.name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        files = (
            _write_base(partial, snapshot, stop) if kind == BASE else _write_delta(partial, manifest, snapshot.delta)
        )
        parent: PolicyVersion | None = snapshot.delta.base if kind == DELTA and snapshot.delta else None
        link = Link(place, sequence, kind, manifest, parent, tuple(files))
        (partial / RECORD).write_bytes(write_record(link))
        _sync(partial / RECORD)
        _sync(partial)
        _check(stop)  # a writer that hung on its file server must not bring an old version forth, hours later
        partial.rename(place)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        raise _failed(error, folder) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return link


def _write_base(partial: Path, snapshot: Snapshot, stop: threading.Event) -> Iterator[LinkFile]:
    specs = {spec.name: spec for spec in snapshot.manifest.tensors if not spec.tied_to}
    for number, names in enumerate(_shards({name: spec.size_bytes for name, spec in specs.items()}), 1):
        _check(stop)
        views = snapshot.buffer.views
        tensors = {name: tensor_over(views[name], specs[name].shape, specs[name].dtype) for name in names}
        checksums = {name: specs[name].checksum for name in names}
        yield _save(partial / f"weights-{number:05d}.safetensors", tensors, checksums)


def _write_delta(partial: Path, manifest: WeightsManifest, delta: Delta | None) -> Iterator[LinkFile]:
    assert delta is not None
    import torch

    packed = {name: b"".join(_packed(records)) for name, records in delta.records.items()}
    checksums = {name: to_hex(crc32(data)) for name, data in packed.items() if data}
    tensors = {name: torch.from_numpy(np.frombuffer(packed[name], np.uint8).copy()) for name in checksums}
    yield _save(partial / "delta.safetensors", tensors, checksums)


def _packed(records: tuple[DeltaRecord, ...]) -> Iterator[bytes]:
    """Nothing for a tensor that did not change."""
    for record in records:
        if record.changed_count:
            yield RECORD_HEADER.pack(record.offset, record.size, len(record.data), record.checksum)
            yield record.data


def _save(path: Path, tensors: Mapping[str, torch.Tensor], checksums: Mapping[str, str]) -> LinkFile:
    from safetensors.torch import save_file

    save_file(dict(tensors), path, metadata={"format": "pt"})
    _sync(path)
    return LinkFile(path.name, path.stat().st_size, checksums)


def _shards(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > SHARD_BYTES:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    yield names


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(error: Exception, folder: Path) -> StorageError:
    told = storage_error(error, folder)
    return StorageError(
        f"weights can't be handed over through the disk: {told.message}. They go through argosy.weight_sync.disk_path; "
        "rollout servers keep the version that they have"
    )
