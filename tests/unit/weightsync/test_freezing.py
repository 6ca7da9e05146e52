"""Freezing: what changed since the version before, and memory that other processes can map."""

from __future__ import annotations

import errno
import gc
import os
import zlib

import numpy as np
import pytest
import torch

from argosy.types.errors import InvalidInputError, NotFoundError, StateError
from argosy.weightsync import Snapshot
from argosy.weightsync.crc import crc32
from argosy.weightsync.freezing import Put, TensorForm
from argosy.weightsync.memory import KeptMapping, MemoryFile, allocate, map_file


@pytest.mark.parametrize(("dtype", "share"), [("float32", 1.0), ("bfloat16", 0.0)])
def test_e7_updates_that_bf16_swallows_show_in_the_share_that_changed(dtype: str, share: float) -> None:
    """0.5 - 1e-4 is below half the spacing of bfloat16: what is published does not move, though the weights do."""
    before = Snapshot.freeze("main", 0, {"w": torch.full((1000,), 0.5)}, dtype=dtype)
    after = Snapshot.freeze("main", 1, {"w": torch.full((1000,), 0.5 - 1e-4)}, dtype=dtype, reuse=before)
    assert (before.changed_share, after.changed_share) == (None, share)


def test_the_share_counts_values() -> None:
    weights = torch.zeros(1 << 20)
    first = Snapshot.freeze("main", 0, {"a": weights, "b": torch.zeros(1 << 20)})
    moved = weights.clone()
    moved[: 1 << 18] = 1
    assert Snapshot.freeze("main", 1, {"a": moved, "b": torch.zeros(1 << 20)}, reuse=first).changed_share == 0.125


def test_a_gathered_snapshot_must_get_every_tensor_once() -> None:
    forms = {"a": TensorForm((2,), "float32"), "b": TensorForm((2,), "float32")}

    def some(put: Put) -> None:
        put("a", torch.zeros(2))

    def twice(put: Put) -> None:
        put("a", torch.zeros(2))
        put("a", torch.zeros(2))

    with pytest.raises(StateError, match="'b'"):
        Snapshot.gather("main", 0, forms, some)
    with pytest.raises(InvalidInputError, match="'a'"):
        Snapshot.gather("main", 0, forms, twice)


def test_a_memory_file_is_mapped_read_only_by_its_identity() -> None:
    file = MemoryFile(4096)
    file.array[:] = 7
    mapped = map_file(file.path, 4096, file.file_id)
    assert mapped.sum() == 7 * 4096
    assert not mapped.flags.writeable
    other = MemoryFile(4096)
    with pytest.raises(NotFoundError, match="another one"):
        map_file(other.path, 4096, file.file_id)
    with pytest.raises(PermissionError):
        os.truncate(file.path, 1)  # sealed: a reader never meets a bus error


def test_a_mapping_is_kept_until_its_file_goes() -> None:
    kept, file = KeptMapping(), MemoryFile(4096)
    path, file_id = file.path, file.file_id
    assert kept.get(path, 4096, file_id) is kept.get(path, 4096, file_id)
    del file
    gc.collect()
    with pytest.raises(NotFoundError):
        kept.get(path, 4096, file_id)


def test_checksums_are_zlibs() -> None:
    data = np.random.default_rng(0).integers(0, 255, 100_003, np.uint8).tobytes()
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data[1000:], crc32(data[:1000])) == zlib.crc32(data)


def test_memory_that_may_not_be_a_file_is_ordinary(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on file sizes (full disks are tried with one) is no reason to publish no weights."""

    def refuse(descriptor: int, size: int) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "ftruncate", refuse)
    array, file = allocate(4096)
    assert (array.nbytes, file) == (4096, None)
    assert "can't be shared" in caplog.text
