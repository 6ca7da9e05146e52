"""Deltas are exact for any bytes, small for what a step changes, and refuse what isn't one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.types.errors import CorruptDataError, InvalidInputError
from argosy.weightsync.delta import MAX_RECORD_SPAN, apply, encode
from argosy.weightsync.tensors import ByteArray, bytes_of


def round_trip(old: ByteArray, new: ByteArray, width: int) -> tuple[bytes, int]:
    record, changed = encode(old, new, width)
    held = old.copy()
    apply(record, held)
    assert held.tobytes() == new.tobytes()
    return record, changed


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 3000),
    st.sampled_from([0.0, 0.001, 0.1, 0.2, 0.3, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_any_bytes_go_round_exactly(width: int, count: int, share: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    old = draw.integers(0, 256, count * width, dtype=np.uint8)
    new = old.copy().reshape(count, width)
    places = draw.random(count) < share
    new[places] = draw.integers(0, 256, (int(places.sum()), width), dtype=np.uint8)
    _, changed = round_trip(old, new.reshape(-1), width)
    assert changed == int((new != old.reshape(count, width)).any(axis=1).sum())


@pytest.mark.parametrize("gap", [1, 255, 256, 257, 65535, 65536, 65537, 300_000])
def test_distances_of_every_width(gap: int) -> None:
    old = np.zeros(2 * 700_000, np.uint8)
    new = old.copy()
    new.view(np.uint16)[::gap] = 3
    new.view(np.uint16)[-1] = 5
    round_trip(old, new, 2)


def test_e7_a_small_step_in_bf16_changes_few_elements_and_takes_few_bytes() -> None:
    """An update far below half the spacing changes only elements near a rounding border."""
    generator = torch.Generator().manual_seed(0)
    master = torch.randn(1 << 19, generator=generator) * 0.1
    moved = master + 1e-6 * torch.randn(1 << 19, generator=generator)
    record, changed = round_trip(bytes_of(master.bfloat16()), bytes_of(moved.bfloat16()), 2)
    assert 0.001 < changed / (1 << 19) < 0.02
    assert len(record) < (1 << 20) / 40


def test_nothing_changed_is_a_header_and_random_bytes_cost_no_more_than_themselves() -> None:
    draw = np.random.default_rng(0)
    old, new = (draw.integers(0, 256, 1 << 16, dtype=np.uint8) for _ in range(2))
    assert len(round_trip(old, old, 2)[0]) == 8
    assert len(round_trip(old, new, 2)[0]) <= new.size + 8


def test_a_delta_on_other_bytes_gives_other_bytes() -> None:
    """Nothing in a record says what it belongs to: the tensor's checksum has to be checked after it."""
    old = np.zeros(64, np.uint8)
    new, other = old.copy(), old.copy()
    new[3], other[40] = 1, 9
    apply(encode(old, new, 2)[0], other)
    assert other.tobytes() != new.tobytes()


def records() -> list[tuple[bytes, int]]:
    """One of each kind, with the size that it is of."""
    draw = np.random.default_rng(1)
    old = np.zeros(4096, np.uint8)
    sparse, dense = old.copy(), np.full(4096, 5, np.uint8)
    sparse[::400] = 1
    noise = draw.integers(0, 256, 4096, dtype=np.uint8)
    return [(encode(old, new, 2)[0], 4096) for new in (old, sparse, dense, noise)]


@pytest.mark.parametrize("kind", range(4))
def test_damaged_records_are_refused_or_leave_other_bytes(kind: int) -> None:
    """Every cut and every flipped byte of a record: an error of ours, or bytes that a checksum tells apart."""
    record, size = records()[kind]
    assert record[0] == kind
    for end in [*range(min(len(record), 60)), len(record) - 1]:
        with pytest.raises(CorruptDataError):
            apply(record[:end], np.zeros(size, np.uint8))
    for place in [*range(min(len(record), 60)), len(record) - 1]:
        for bits in (1, 0x80, 0xFF):
            damaged = bytearray(record)
            damaged[place] ^= bits
            try:
                apply(bytes(damaged), np.zeros(size, np.uint8))
            except CorruptDataError:
                continue  # and otherwise there was no crash and nothing outside was written


def test_a_record_of_another_size_is_refused() -> None:
    for record, size in records()[1:]:
        with pytest.raises(CorruptDataError):
            apply(record, np.zeros(size // 2, np.uint8))


@pytest.mark.parametrize(("size", "width"), [(3, 2), (4, 3), (MAX_RECORD_SPAN + 2, 2)])
def test_what_can_not_be_encoded_is_refused(size: int, width: int) -> None:
    with pytest.raises(InvalidInputError):
        encode(np.zeros(size, np.uint8), np.zeros(size, np.uint8), width)
