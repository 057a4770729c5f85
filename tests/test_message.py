"""Messages: frames and back, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import ProtocolError
from testbed.gpu.standin import DEVICE, standin
from testbed.message import MAX_BUFFERS, Message

arrays = st.builds(
    lambda kind, size: np.arange(size).astype(kind),
    st.sampled_from([np.uint8, np.float32, np.int64]),
    st.integers(0, 300),
)


@given(
    st.text(max_size=20),
    st.integers(0, 2**40),
    st.lists(arrays, max_size=4),
    st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
)
def test_frames_and_back(kind: str, step: int, buffers: list[np.ndarray], numbers: tuple[float, ...]) -> None:
    message = Message(kind, step, buffers, numbers)
    frames = [memoryview(frame) for frame in message.frames()]
    arrived = Message.from_frames(frames)
    assert (arrived.kind, arrived.step, arrived.numbers) == (kind, step, numbers)
    assert [buffer.tobytes() for buffer in arrived.buffers] == [buffer.tobytes() for buffer in buffers]
    assert arrived.nbytes == message.nbytes
    assert message.nbytes == sum(len(frame) + (2 if len(frame) <= 255 else 9) for frame in frames)


def test_an_arrived_buffer_cannot_be_written_to() -> None:
    arrived = Message.from_frames([memoryview(bytes(frame)) for frame in Message("x", 0, [np.ones(4)]).frames()])
    with pytest.raises(ValueError, match="read-only"):
        arrived.buffers[0][0] = 1


def test_a_number_on_a_device_is_as_long_as_any_and_is_not_waited_for() -> None:
    with standin() as counts:
        message = Message("gradient", 1, [], (torch.tensor(0.25).to(DEVICE),))  # type: ignore[arg-type]
        assert message.nbytes == Message("gradient", 1, [], (1e300,)).nbytes
        assert counts.waits == 1  # for the number to get there
        assert message.header == Message("gradient", 1, [], (0.25,)).header


def test_only_numbers_travel_in_the_header() -> None:
    with pytest.raises(TypeError, match="not a complex"):
        Message("gradient", 1, [], (1j,))  # type: ignore[arg-type]


def test_buffers_travel_without_a_copy() -> None:
    array = np.zeros(1000, np.float32)
    _, frame = Message("x", 0, [array]).frames()
    assert np.shares_memory(np.frombuffer(frame, np.float32), array)


def header(*parts: object) -> bytes:
    return msgspec.msgpack.encode(parts)


MALFORMED = {
    "nothing": [],
    "empty": [b""],
    "no MessagePack": [b"\xc1"],
    "not a header": [header("kind")],
    "another type": [header(1, 0)],
    "text for a step": [header("kind", "one")],
    "text for a number": [header("kind", 1, ["x"])],
    "more behind it": [header("kind", 1) + b"\x00"],
    "no UTF-8": [b"\x92\xa5\x00\x00\x00\x00\x80"],
    "cut off": [header("kind", 1000)[:-1]],
    "a header too long": [header("k" * 70_000, 1)],
    "too many frames": [header("kind", 1), *[b""] * MAX_BUFFERS],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_frames_are_a_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError, match="header"):
        Message.from_frames([memoryview(frame) for frame in MALFORMED[name]])


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_no_bytes_raise_anything_else(frames: list[bytes]) -> None:
    with suppress(ProtocolError):
        Message.from_frames([memoryview(frame) for frame in frames])
