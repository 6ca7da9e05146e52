from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.api.common.v1 import payload_pb2
from argosy.api.reference.v1 import reference_service_pb2 as pb
from argosy.rpc.chunking import (
    CHUNK_BYTES,
    batch_parts,
    check_columns,
    collect,
    collect_batch,
    only,
    payload_parts,
    read_start,
)
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import CorruptDataError, InvalidInputError, MessageTooLargeError
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged

Parts = list[payload_pb2.PayloadPart]


async def stream(parts: Iterable[payload_pb2.PayloadPart]) -> AsyncIterator[payload_pb2.PayloadPart]:
    for part in parts:
        yield part


@settings(deadline=None, max_examples=50)
@given(data=st.binary(max_size=200), chunk_bytes=st.integers(1, 64))
async def test_any_payload_comes_back(data: bytes, chunk_bytes: int) -> None:
    assert await collect(stream(payload_parts("k", data, chunk_bytes)), kind="k") == data


async def test_a_large_payload_goes_in_chunks_of_a_mebibyte() -> None:
    data = np.random.default_rng(0).bytes(3 * CHUNK_BYTES + 5)
    parts = list(payload_parts("k", data))
    assert [len(part.chunk.data) for part in parts] == [0, CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES, 5, 0]
    assert max(part.ByteSize() for part in parts) < CHUNK_BYTES + 64
    assert await collect(stream(parts), kind="k") == data


def flip_data(parts: Parts) -> None:
    parts[2].chunk.data = b"XXXX"


def flip_data_and_checksum(parts: Parts) -> None:
    parts[2].chunk.data = b"XXXX"
    parts[2].chunk.checksum = zlib.crc32(b"XXXX")


def drop_chunk(parts: Parts) -> None:
    del parts[2]


def drop_last_chunk(parts: Parts) -> None:
    del parts[-2]


def swap_chunks(parts: Parts) -> None:
    parts[1], parts[2] = parts[2], parts[1]


def repeat_chunk(parts: Parts) -> None:
    parts.insert(2, parts[1])


def drop_end(parts: Parts) -> None:
    del parts[-1]


def drop_header(parts: Parts) -> None:
    del parts[0]


def drop_all(parts: Parts) -> None:
    parts.clear()


def second_header(parts: Parts) -> None:
    parts.insert(2, parts[0])


def empty_part(parts: Parts) -> None:
    parts.insert(2, payload_pb2.PayloadPart())


def extra_chunk(parts: Parts) -> None:
    chunk = payload_pb2.PayloadChunk(offset=10, data=b"more", checksum=zlib.crc32(b"more"))
    parts.insert(-1, payload_pb2.PayloadPart(chunk=chunk))


def wrong_count(parts: Parts) -> None:
    parts[-1].end.chunk_count += 1


def smaller_size(parts: Parts) -> None:
    parts[0].header.size_bytes -= 1


def larger_size(parts: Parts) -> None:
    parts[0].header.size_bytes += 1


def negative_size(parts: Parts) -> None:
    parts[0].header.size_bytes = -1


def empty_chunks(parts: Parts) -> None:
    parts.insert(1, payload_pb2.PayloadPart(chunk=payload_pb2.PayloadChunk(offset=0)))


DAMAGES: list[Callable[[Parts], None]] = [
    flip_data,
    flip_data_and_checksum,
    drop_chunk,
    drop_last_chunk,
    swap_chunks,
    repeat_chunk,
    drop_end,
    drop_header,
    drop_all,
    second_header,
    empty_part,
    extra_chunk,
    wrong_count,
    smaller_size,
    larger_size,
    negative_size,
    empty_chunks,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_every_damage_is_found(damage: Callable[[Parts], None]) -> None:
    parts = list(payload_parts("k", b"0123456789", 4))
    damage(parts)
    with pytest.raises(CorruptDataError):
        await collect(stream(parts), kind="k")


async def test_a_payload_over_the_bound_is_refused_at_its_header() -> None:
    parts = stream(payload_parts("k", bytes(100), 10))
    with pytest.raises(MessageTooLargeError, match="100 bytes, over the limit of 99"):
        await collect(parts, kind="k", max_bytes=99)
    assert (await anext(parts)).chunk.offset == 0  # nothing behind the header was read


async def test_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'arrow-ipc'"):
        await collect(stream(payload_parts("parquet", b"")), kind="arrow-ipc")


def a_batch() -> TrajectoryBatch:
    ids = [SampleId(0, 0, 0), SampleId(0, 0, 1)]
    column = Ragged.from_rows([[-0.5, -0.25], []], np.float32)
    return TrajectoryBatch.build(ids, [[1, 2], [3]], [[4, 5], []], log_probs=column)


async def test_a_batch_comes_back_bit_for_bit() -> None:
    batch = await collect_batch(stream(batch_parts(a_batch())))
    assert batch.table.equals(a_batch().table)
    empty = a_batch().select([])
    assert len(await collect_batch(stream(batch_parts(empty)))) == 0


async def test_bytes_that_are_no_batch_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="not Arrow IPC"):
        await collect_batch(stream(payload_parts("arrow-ipc", b"PAR1 something else")))
    no_ids = TrajectoryBatch(a_batch().table.drop_columns(["sample_id"]))
    with pytest.raises(InvalidInputError, match="sample_id"):
        await collect_batch(stream(batch_parts(no_ids)))


async def test_an_upload_begins_with_start_and_goes_on_with_payload() -> None:
    async def messages(*items: pb.ComputeLogProbsRequest) -> AsyncIterator[pb.ComputeLogProbsRequest]:
        for item in items:
            yield item

    start = pb.ComputeLogProbsRequest(start=pb.ComputeLogProbsStart(columns=["entropy"]))
    payload = [pb.ComputeLogProbsRequest(payload=part) for part in batch_parts(a_batch())]
    got, parts = await read_start(messages(start, *payload))
    assert list(got.columns) == ["entropy"]
    assert len(await collect_batch(parts)) == 2
    for wrong in ([], payload):
        with pytest.raises(InvalidInputError, match="must begin with `start`"):
            await read_start(messages(*wrong))
    _, parts = await read_start(messages(start, start))
    with pytest.raises(InvalidInputError, match="`payload` only"):
        await collect_batch(parts)


def test_answers_are_checked_for_samples_and_columns() -> None:
    batch = a_batch()
    reordered = only(batch.select([1, 0]), "response_ids", "log_probs")
    check_columns(batch, reordered, ["log_probs"], "reference-0")
    with pytest.raises(CorruptDataError, match="reference-0 left out the columns \\['entropy'\\]"):
        check_columns(batch, reordered, ["log_probs", "entropy"], "reference-0")
    with pytest.raises(CorruptDataError, match="other samples"):
        check_columns(batch, batch.select([0]), [], "reference-0")
    with pytest.raises(InvalidInputError, match="values"):
        only(batch, "values")
