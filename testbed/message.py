"""What roles send each other: a small typed header and raw buffers.

A message is a multipart ZeroMQ message: the header as MessagePack, then each buffer as it lies in memory.
`nbytes` is exactly what TCP carries for it: the frames and ZMTP 3.1's framing of each (RFC 37: one flag
byte, then a length of 1 byte up to 255, of 8 bytes above). The virtual fabric charges that number and the
emulated one sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import msgspec
import numpy as np

from testbed.errors import ProtocolError

MAX_HEADER_BYTES = 1 << 16
MAX_BUFFERS = 4096
SEGMENT_BYTES, FRAME_BYTES = 1448, 1514  # of a full segment: TCP payload; with timestamps, TCP, IP and Ethernet headers
PAYLOAD_PER_WIRE = SEGMENT_BYTES / FRAME_BYTES  # goodput against what the byte counters of links see


class Header(msgspec.Struct, array_like=True, frozen=True):
    """`kind` says what the buffers are, `numbers` carries the few scalars that are not worth a buffer."""

    kind: str
    step: int
    numbers: tuple[float, ...] = ()


class Message:
    """One message. Its buffers are never written to once it is sent, nor by the one who receives it.

    Parameters
    ----------
    kind : what it is, e.g. "gradient"; sender and receiver agree on it
    step : the sender's step (or round), for the receiver to check
    buffers : C-contiguous arrays of any type
    numbers : a few scalars that travel in the header; on the virtual fabric one of a device's may still be there

    Attributes
    ----------
    nbytes : bytes on a TCP connection, framing included, TCP/IP headers not
    """

    __slots__ = ("buffers", "kind", "nbytes", "numbers", "step")

    def __init__(
        self, kind: str, step: int = 0, buffers: Sequence[np.ndarray] = (), numbers: tuple[float, ...] = ()
    ) -> None:
        self.kind = kind
        self.step = step
        self.buffers = buffers
        self.numbers = numbers
        header = msgspec.msgpack.encode(Header(kind, step, numbers), enc_hook=_any_number)
        self.nbytes = framed(len(header)) + sum([framed(buffer.nbytes) for buffer in buffers])

    @property
    def header(self) -> bytes:
        """The first frame."""
        return msgspec.msgpack.encode(Header(self.kind, self.step, self.numbers), enc_hook=float)

    def frames(self) -> list[bytes | memoryview]:
        """The message as the frames to send, without a copy of the buffers."""
        return [
            self.header,
            *(buffer.data.cast("B") if buffer.size else b"" for buffer in self.buffers),
        ]

    @classmethod
    def from_frames(cls, frames: Sequence[memoryview]) -> Message:
        """The message that arrived as `frames`; buffers are read-only uint8 views.

        Raises
        ------
        ProtocolError
            No valid header, or more frames than any message has.
        """
        if not frames or len(frames) > MAX_BUFFERS or len(frames[0]) > MAX_HEADER_BYTES:
            raise ProtocolError(f"a message of {len(frames)} frames has no valid header")
        try:
            header = msgspec.msgpack.decode(frames[0], type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a message's header cannot be read: {error}") from None
        buffers = [np.frombuffer(frame, np.uint8) for frame in frames[1:]]
        return cls(header.kind, header.step, buffers, header.numbers)


def _any_number(number: Any) -> float:
    """What is as long as a number that is on a device, and that nobody is to wait for to know how long it is."""
    if not isinstance(number, SupportsFloat):
        raise TypeError(f"a message carries numbers in its header, not a {type(number).__name__}")
    return 0.0


def framed(size: int) -> int:
    """Bytes of one ZMTP frame that carries `size` bytes."""
    return size + (2 if size <= 255 else 9)
