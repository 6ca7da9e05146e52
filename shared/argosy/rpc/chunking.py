"""Large payloads as a stream of header, chunks of about 1 MiB, end; and back, with every byte checked.

parts = payload_parts("arrow-ipc", batch.to_ipc())          # sender
data = await collect(parts, kind="arrow-ipc")               # receiver
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from argosy.api.common.v1 import payload_pb2
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import CorruptDataError, InvalidInputError, MessageTooLargeError

CHUNK_BYTES = 1 << 20
"""Measured best on loopback: larger chunks are slower."""
MAX_PAYLOAD_BYTES = 4 << 30
"""The most that a receiver takes for one payload."""
ARROW_IPC = "arrow-ipc"


def payload_parts(
    kind: str, data: bytes | memoryview, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[payload_pb2.PayloadPart]:
    """Cut a payload into the parts of its stream."""
    view = memoryview(data).cast("B")
    header = payload_pb2.PayloadHeader(kind=kind, size_bytes=len(view), checksum=zlib.crc32(view))
    yield payload_pb2.PayloadPart(header=header)
    count = 0
    for offset in range(0, len(view), chunk_bytes):
        piece = bytes(view[offset : offset + chunk_bytes])
        chunk = payload_pb2.PayloadChunk(offset=offset, data=piece, checksum=zlib.crc32(piece))
        yield payload_pb2.PayloadPart(chunk=chunk)
        count += 1
    yield payload_pb2.PayloadPart(end=payload_pb2.PayloadEnd(chunk_count=count))


async def collect(
    parts: AsyncIterator[payload_pb2.PayloadPart], *, kind: str, max_bytes: int = MAX_PAYLOAD_BYTES
) -> bytes:
    """Put a payload together again.

    Raises CorruptDataError on a wrong checksum, offset, size or count, or a stream cut short; InvalidInputError on
    another kind; MessageTooLargeError, before reading on, when the header announces more than `max_bytes`.
    """
    header = await _header(parts, kind, max_bytes)
    buffer = bytearray(header.size_bytes)
    received = 0
    count = 0
    async for part in parts:
        which = part.WhichOneof("part")
        if which == "chunk":
            received = _place(part.chunk, buffer, received)
            count += 1
        elif which == "end":
            _check_whole(header, buffer, received, count, part.end)
            return bytes(buffer)
        else:
            raise CorruptDataError(f"expected a chunk or the end after {received} bytes, got {which or 'nothing'}")
    raise CorruptDataError(f"the stream was cut short after {received} of {header.size_bytes} bytes")


async def _header(
    parts: AsyncIterator[payload_pb2.PayloadPart], kind: str, max_bytes: int
) -> payload_pb2.PayloadHeader:
    part = await anext(parts, None)
    if part is None:
        raise CorruptDataError("the stream ended before the payload's header")
    if part.WhichOneof("part") != "header":
        raise CorruptDataError(f"expected the payload's header, got {part.WhichOneof('part') or 'nothing'}")
    header = part.header
    if header.kind != kind:
        raise InvalidInputError(f"expected a payload of kind {kind!r}, got {header.kind!r}")
    if header.size_bytes < 0:
        raise CorruptDataError(f"the payload's size is {header.size_bytes}")
    if header.size_bytes > max_bytes:
        raise MessageTooLargeError(
            f"the payload has {header.size_bytes} bytes, over the limit of {max_bytes} bytes",
            size_bytes=str(header.size_bytes),
            limit_bytes=str(max_bytes),
        )
    return header


def _place(chunk: payload_pb2.PayloadChunk, buffer: bytearray, received: int) -> int:
    if chunk.offset != received:
        raise CorruptDataError(f"a chunk begins at {chunk.offset}, expected {received}")
    if received + len(chunk.data) > len(buffer) or not chunk.data:
        raise CorruptDataError(f"a chunk of {len(chunk.data)} bytes at {received} does not fit into {len(buffer)}")
    if zlib.crc32(chunk.data) != chunk.checksum:
        raise CorruptDataError(f"the checksum of the chunk at {chunk.offset} does not match")
    buffer[received : received + len(chunk.data)] = chunk.data
    return received + len(chunk.data)


def _check_whole(
    header: payload_pb2.PayloadHeader, buffer: bytearray, received: int, count: int, end: payload_pb2.PayloadEnd
) -> None:
    if received != header.size_bytes or count != end.chunk_count:
        raise CorruptDataError(
            f"the payload ended after {received} of {header.size_bytes} bytes and {count} of {end.chunk_count} chunks"
        )
    if zlib.crc32(buffer) != header.checksum:
        raise CorruptDataError("the checksum of the payload does not match")


Start = TypeVar("Start", covariant=True)


class UploadMessage(Protocol[Start]):
    """A request message of a stream {start, payload}: all such messages of the protos have this shape."""

    @property
    def start(self) -> Start:
        """The first message's parameters."""
        ...

    @property
    def payload(self) -> payload_pb2.PayloadPart:
        """A later message's part of the payload."""
        ...


StartT = TypeVar("StartT")


async def read_start(
    messages: AsyncIterator[UploadMessage[StartT]],
) -> tuple[StartT, AsyncIterator[payload_pb2.PayloadPart]]:
    """The start of an upload and the payload parts that follow. InvalidInputError if it begins with something else."""
    iterator = aiter(messages)
    first: Any = await anext(iterator, None)
    if first is None or not first.HasField("start"):
        raise InvalidInputError("the stream must begin with `start`")
    return first.start, _payload_of(iterator)


async def _payload_of(messages: AsyncIterator[Any]) -> AsyncIterator[payload_pb2.PayloadPart]:
    async for message in messages:
        if not message.HasField("payload"):
            raise InvalidInputError("after `start` the stream carries `payload` only")
        yield message.payload


def only(batch: TrajectoryBatch, *names: str) -> TrajectoryBatch:
    """The samples with the named columns alone, to send no more than is needed. InvalidInputError if one is missing."""
    missing = [name for name in names if not batch.has(name)]
    if missing:
        raise InvalidInputError(f"the batch lacks the columns {missing}; it has {batch.columns}")
    return TrajectoryBatch(batch.table.select(["sample_id", *dict.fromkeys(names)]))


def batch_parts(batch: TrajectoryBatch) -> Iterator[payload_pb2.PayloadPart]:
    """A batch as payload parts."""
    return payload_parts(ARROW_IPC, batch.to_ipc())


async def collect_batch(parts: AsyncIterator[payload_pb2.PayloadPart]) -> TrajectoryBatch:
    """A batch from payload parts. InvalidInputError if the bytes are whole but not a TrajectoryBatch."""
    data = await collect(parts, kind=ARROW_IPC)
    try:
        batch = TrajectoryBatch.from_ipc(data)
    except (ValueError, OSError) as unreadable:  # pyarrow.ArrowInvalid is a ValueError
        raise InvalidInputError(f"the payload is not Arrow IPC: {unreadable}") from unreadable
    missing = [name for name in ("sample_id", "response_ids") if not batch.has(name)]
    if missing:
        raise InvalidInputError(f"the batch lacks the columns {missing}; it has {batch.columns}")
    return batch


def check_columns(asked: TrajectoryBatch, answer: TrajectoryBatch, columns: Iterable[str], peer: str) -> None:
    """CorruptDataError unless an answer has the samples asked for, in any order, and the named columns."""
    if sorted(answer.sample_ids) != sorted(asked.sample_ids):
        raise CorruptDataError(f"{peer} answered for other samples than the {len(asked)} it was asked for")
    missing = [name for name in columns if not answer.has(name)]
    if missing:
        raise CorruptDataError(f"{peer} left out the columns {missing}")
