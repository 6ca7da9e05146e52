"""Chunks of weights on the wire: protobuf's own messages, whoever writes and reads them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from argosy.api.common.v1 import weights_pb2
from argosy.api.common.v1 import weights_service_pb2 as pb
from argosy.rpc.codec.common import weight_chunk_from_pb, weight_chunk_to_pb
from argosy.rpc.codec.weight_stream import decode, encode
from argosy.types.records import WeightChunk

CHUNKS = st.builds(
    WeightChunk,
    name=st.text(max_size=200),
    offset=st.integers(0, 2**62),
    data=st.binary(max_size=300),
    checksum=st.integers(0, 2**32 - 1),
    delta_size_bytes=st.sampled_from([0, 1, 2**40]),
)


@given(CHUNKS)
def test_protobuf_reads_what_we_write_and_we_what_it_writes(chunk: WeightChunk) -> None:
    message = pb.StreamWeightsResponse.FromString(encode(chunk))
    assert message == pb.StreamWeightsResponse(chunk=weight_chunk_to_pb(chunk))
    assert weight_chunk_from_pb(message.chunk) == chunk
    assert decode(encode(chunk)) == chunk
    assert decode(message.SerializeToString()) == chunk


def test_a_chunk_of_another_order_or_with_more_is_read_too() -> None:
    chunk = WeightChunk("w", 7, b"abc", 5)
    parts = [weights_pb2.WeightChunk(data=b"abc"), weights_pb2.WeightChunk(name="w", offset=7, checksum=5)]
    inner = b"".join(part.SerializeToString() for part in parts)
    assert decode(bytes((3 << 3 | 2, len(inner))) + inner) == chunk
    merged = (
        encode(WeightChunk("w", 7, b"ab", 4))
        + pb.StreamWeightsResponse(chunk=weights_pb2.WeightChunk(data=b"abc", checksum=5)).SerializeToString()
    )
    assert decode(merged) == chunk
    unknown = b"\x9a\x06\x01x"  # field 99, which a newer sender may have
    assert decode(encode(chunk) + unknown) == chunk


def test_a_whole_chunk_is_a_view_of_the_message() -> None:
    data = bytes(range(256)) * 4096
    message = encode(WeightChunk("w", 0, memoryview(data), 1))
    found = decode(message)
    assert isinstance(found, WeightChunk)
    assert isinstance(found.data, memoryview)
    assert found.data.obj is message
    assert found.data == data


def test_other_messages_stay_messages() -> None:
    for message in (pb.StreamWeightsResponse(header=pb.StreamWeightsHeader(size_bytes=3)), pb.StreamWeightsResponse()):
        assert decode(encode(message)) == message


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_message_that_was_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(DecodeError):
        decode(encode(WeightChunk("weight", 9, b"0123456789", 3))[:-cut])
