"""`events.jsonl`: one event a line, appended as things happen.

1. A line is written whole by one system call. A killed run can only tear the last one, and a last line without
   its newline counts as torn.
2. JSON has no NaN and no infinity: a number that is neither is written as null and read as NaN.
3. A line ends with the CRC-32 of what stands before it, as the key `crc`; those of older records do not.
4. A line that cannot be read (another version's event, a damaged disk) is counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from testbed.files import crc32
from testbed.record.events import AnyEvent, Checkpointed, Event, OneLink, OneSize

FILE_NAME = "events.jsonl"
# msgspec writes the tag first, so that a line's event is known without decoding it.
STEP_PREFIX = b'{"event":"step",'
LINK_PREFIXES = (b'{"event":"links",', b'{"event":"link",')
_CHECKPOINT_PREFIX = b'{"event":"checkpointed",'
TAIL_BYTES = 65536
_CRC, _END = b',"crc":"', b'"}'


def _plain(value: Any) -> Any:
    """A NumPy number, which slips into an event easily, as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"an event cannot hold a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)  # no JSON; not UTF-8 or endless digits; nested deeply


def encode(event: Event) -> bytes:
    """The event as one line, newline included."""
    body = _encoder.encode(event)[:-1]
    return body + _CRC + crc32(body).encode() + _END + b"\n"


def decode(line: bytes) -> AnyEvent | None:
    """The event on a line (null numbers as NaN), or None where it is damaged or holds none that is known here."""
    body, mark, rest = line.rpartition(_CRC)
    if mark and rest.rstrip(b"\n") != crc32(body).encode() + _END:
        return None
    event = _decoded(line)
    return event.today() if isinstance(event, OneLink | OneSize) else event


def _decoded(line: bytes) -> AnyEvent | None:
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        pass
    except UNREADABLE:
        return None
    try:
        fields = msgspec.json.decode(line)
        return msgspec.convert({k: math.nan if v is None else v for k, v in fields.items()}, AnyEvent)
    except (*UNREADABLE, AttributeError):
        return None


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of the file without a torn last one."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


class Follower:
    """Reads a file of events as other processes append to it, from its present end on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new(self) -> Iterator[AnyEvent]:
        """The events on the whole lines added since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if (event := decode(line)) is not None:
                    yield event


def is_torn(path: Path) -> bool:
    """Whether the file ends in the middle of a line."""
    tail = _tail(path, 1)
    return bool(tail) and tail != b"\n"


def last_event(path: Path) -> AnyEvent | None:
    """The event on the last whole line, found without reading the file; None where there is none."""
    length, size_bytes = path.stat().st_size, TAIL_BYTES
    while (tail := _tail(path, size_bytes)).count(b"\n") < 2 and size_bytes < length:  # a line of very many links
        size_bytes *= 8
    lines = tail.split(b"\n")[:-1]  # what follows the last newline is torn, or nothing
    return decode(lines[-1]) if lines else None


def checkpoint_end(path: Path, step: int | None = None) -> int:
    """Offset in bytes just behind the last `Checkpointed` line (the last of that `step` when given); 0 if none."""
    end = offset = 0
    for line in whole_lines(path):
        offset += len(line)
        if line.startswith(_CHECKPOINT_PREFIX):
            event = decode(line)
            if isinstance(event, Checkpointed) and step in (None, event.step):
                end = offset
    return end


def _tail(path: Path, size_bytes: int) -> bytes:
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - size_bytes))
        return file.read()
