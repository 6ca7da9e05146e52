"""Messages between ranks of one trainer: a JSON header and raw bytes (Arrow IPC), over a pair of pipes.

Nothing here can run code, unlike pickle. A frame is

    bytes 0-3    length of the header, unsigned little-endian
    bytes 4-11   length of the body, unsigned little-endian
    then         the header: a JSON object, UTF-8
    then         the body: may be empty
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.types.errors import DeadlineError, InternalError

_LENGTHS = struct.Struct("<IQ")
_READ_BYTES = 1 << 20
MOST_HEADER_BYTES = 64 * 1024 * 1024
MOST_BODY_BYTES = 64 * 1024 * 1024 * 1024
"""A longer frame is nonsense from a broken peer: nothing is allocated for it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    header: Mapping[str, Any]
    body: bytes = b""

    def encode(self) -> list[bytes]:
        """The bytes to send, the body uncopied."""
        header = json.dumps(self.header).encode()
        return [_LENGTHS.pack(len(header), len(self.body)) + header, self.body]


class FrameReader:
    """Puts frames together from the pieces that arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        """The frames that are complete with this piece. Raises InternalError or ValueError on nonsense."""
        self._buffer += piece
        frames = []
        while (size := self._size()) is not None and len(self._buffer) >= size:
            header_bytes, _ = _LENGTHS.unpack_from(self._buffer)
            start = _LENGTHS.size + header_bytes
            header = json.loads(bytes(self._buffer[_LENGTHS.size : start]))
            if not isinstance(header, dict):
                raise InternalError(f"a message between ranks has a {type(header).__name__} for a header")
            frames.append(Frame(header, bytes(self._buffer[start:size])))
            del self._buffer[:size]
        return frames

    def _size(self) -> int | None:
        """Of the frame at the front of the buffer, if its lengths are there."""
        if len(self._buffer) < _LENGTHS.size:
            return None
        header, body = _LENGTHS.unpack_from(self._buffer)
        if header > MOST_HEADER_BYTES or body > MOST_BODY_BYTES:
            raise InternalError(f"a message between ranks claims {header} + {body} bytes")
        return _LENGTHS.size + int(header) + int(body)


class Outgoing:
    """The writing end of a pipe. Its file descriptor is set to non-blocking."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def send(self, frame: Frame, timeout_s: float) -> None:
        """Write all of it. Raises DeadlineError if nobody reads, BrokenPipeError if the reader is gone."""
        end = time.monotonic() + timeout_s
        for piece in frame.encode():
            view = memoryview(piece)
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    left = end - time.monotonic()
                    if left <= 0 or not self._poll.poll(left * 1000):
                        raise DeadlineError(f"a message between ranks was not read within {timeout_s:g} s") from None

    def close(self) -> None:
        """Give back the pipe."""
        os.close(self._fd)


class Incoming:
    """The reading end of a pipe, read by waiting."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    def receive(self) -> Frame | None:
        """The next frame; None when the other side has closed."""
        while not self._frames:
            piece = os.read(self._fd, _READ_BYTES)
            if not piece:
                return None
            self._frames += self._reader.feed(piece)
        return self._frames.pop(0)
