"""StreamWeightsResponse on the wire, with the fewest copies of a chunk's bytes.

Protobuf's own way copies each byte of a chunk three times on either side (into the message, out of it, and to or from
gRPC). These two functions write and read the same messages with one: everything but `data` is protobuf's own, and a
message that looks otherwise than ours (any order of fields is allowed) is read by protobuf.
"""

from __future__ import annotations

from argosy.api.common.v1 import weights_pb2
from argosy.api.common.v1 import weights_service_pb2 as pb
from argosy.rpc.codec.common import weight_chunk_from_pb
from argosy.types.records import WeightChunk

Response = pb.StreamWeightsResponse | WeightChunk
_LENGTH_DELIMITED = 2
_CHUNK_TAG = pb.StreamWeightsResponse.CHUNK_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_DATA_TAG = weights_pb2.WeightChunk.DATA_FIELD_NUMBER << 3 | _LENGTH_DELIMITED


def encode(response: Response) -> bytes:
    """A message with this chunk, or the message."""
    if not isinstance(response, WeightChunk):
        return response.SerializeToString()
    rest = weights_pb2.WeightChunk(
        name=response.name,
        offset=response.offset,
        checksum=response.checksum,
        delta_size_bytes=response.delta_size_bytes,
    ).SerializeToString()
    # The bytes come last: a reader finds them at the end of the message.
    head = rest + bytes((_DATA_TAG,)) + _varint(len(response.data))
    size = len(head) + len(response.data)
    return b"".join((bytes((_CHUNK_TAG,)), _varint(size), head, response.data))


def decode(message: bytes) -> Response:
    """The chunk of a message, its bytes a view of the message's own; or the message, if it has no chunk.

    Raises google.protobuf.message.DecodeError on what is no such message.
    """
    found = _split(message)
    if found is None:
        read = pb.StreamWeightsResponse.FromString(message)
        return weight_chunk_from_pb(read.chunk) if read.WhichOneof("part") == "chunk" else read
    head, data = found
    chunk = weights_pb2.WeightChunk.FromString(head)
    kept = bytes(data) if chunk.delta_size_bytes else data
    return WeightChunk(chunk.name, chunk.offset, kept, chunk.checksum, chunk.delta_size_bytes)


def _split(message: bytes) -> tuple[bytes, memoryview] | None:
    """(the chunk's other fields, its data), if the message is a chunk that `encode` might have written."""
    if not message or message[0] != _CHUNK_TAG:
        return None
    size, start = _read_varint(message, 1)
    if size is None or start + size != len(message):
        return None
    # Fields until the data, each of a tag below 128: numbers (varints) and the name.
    place = start
    while place < len(message):
        tag = message[place]
        if tag == _DATA_TAG:
            length, begin = _read_varint(message, place + 1)
            if length is None or begin + length != len(message):
                return None
            return message[start:place], memoryview(message)[begin:]
        value, place = _read_varint(message, place + 1)
        if value is None or tag & 7 not in (0, _LENGTH_DELIMITED):
            return None
        if tag & 7 == _LENGTH_DELIMITED:
            place += value
    return None


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(message: bytes, place: int) -> tuple[int | None, int]:
    """(value, place behind it); None where none ends within ten bytes."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            return None, place
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    return None, place
