"""What coding costs on a modelled device: each codec's time as measured, in copies of the vector that it codes.

`costs.toml` is written by `testbed bench costs`, which times every codec against a copy of the same vector in one run
on one thread, so that each is charged by the same rule: a copy moves `COPY` bytes of memory an element on the device,
and whatever takes c times as long as a copy is charged as much memory as c copies. Vectors that travel as they are
cost nothing to code; adding one to another reads two and writes one.

A codec names its row with `costs_as`. One without a row, of a plug-in, is charged as `UNKNOWN` says, unless it has a
`cost` of its own: `cost = Cost(encode=2.0, decode=1.0, add=1.5)`, by what `testbed bench codecs --plugin` measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from testbed.codecs.base import WireBuffers
from testbed.layout import Layout
from testbed.types import NotNegative

TABLE = Path(__file__).with_name("costs.toml")
UNKNOWN = "a codec without a figure"
COPY = 8.0  # bytes of memory that copying a float32 moves: it is read and written


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copies of a float32 vector that an operation takes as long as.

    Parameters
    ----------
    encode, decode : of a vector
    add : of a message to a vector, decoding included
    survey : the part of `encode` that measures the vector before it is coded, where that can be done by itself
    encode_message, decode_message, add_message : beside that, copies of the message's own bytes: what codecs take
        more for a message that holds more
    """

    encode: NotNegative
    decode: NotNegative
    add: NotNegative
    survey: NotNegative = 0.0
    encode_message: NotNegative = 0.0
    decode_message: NotNegative = 0.0
    add_message: NotNegative = 0.0


@dataclass(frozen=True)
class Priced:
    """An operation on a model's vectors that has a row of its own and is no codec's plain coding."""

    layout: Layout
    costs_as: str


@dataclass(frozen=True)
class Stated:
    """The same whose cost follows from others'."""

    layout: Layout
    cost: Cost


COSTS: dict[str, Cost] = msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, Cost])


def cost_of(codec: Any) -> Cost:
    """What a codec states, or its row of the table."""
    stated = getattr(codec, "cost", None)
    return stated if isinstance(stated, Cost) else COSTS.get(row_of(codec), COSTS[UNKNOWN])


def fed_back(codec: Any) -> Stated:
    """What a codec is charged as where what it leaves out is fed back."""
    return Stated(codec.layout, cost_with_feedback(codec))


def cost_with_feedback(codec: Any) -> Cost:
    """What `codec` with error feedback costs: its row, or else decoding each message and two additions on top."""
    row, plain = f"{row_of(codec)} with feedback", cost_of(codec)
    if row in COSTS and not isinstance(getattr(codec, "cost", None), Cost):
        return COSTS[row]
    additions = 2 * COSTS["float32"].add
    return msgspec.structs.replace(
        plain,
        encode=plain.encode + plain.decode + additions,
        encode_message=plain.encode_message + plain.decode_message,
    )


def row_of(codec: Any) -> str:
    """The name of a codec's row, "" where it names none."""
    return getattr(codec, "costs_as", "")


def surveying(codec: Any, elements: int) -> float:
    """Bytes of memory charged for measuring a vector of so many elements before it is coded."""
    return COPY * cost_of(codec).survey * elements


def encoding(codec: Any, elements: int, nbytes: int) -> float:
    """The same for coding it into a message of `nbytes`, surveying included."""
    cost = cost_of(codec)
    return COPY * (cost.encode * elements + cost.encode_message * nbytes / 4)


def decoding(codec: Any, elements: int, nbytes: int) -> float:
    """The same for decoding it."""
    cost = cost_of(codec)
    return COPY * (cost.decode * elements + cost.decode_message * nbytes / 4)


def adding(codec: Any, elements: int, nbytes: Sequence[int]) -> float:
    """The same for adding up messages of these sizes: the first is decoded, the others are added to it."""
    cost = cost_of(codec)
    others = sum(cost.add * elements + cost.add_message * each / 4 for each in nbytes[1:])
    return decoding(codec, elements, nbytes[0]) + COPY * others if nbytes else 0.0


def size_of(buffers: WireBuffers | Iterable[Any]) -> int:
    """Bytes of a message's buffers."""
    return sum(buffer.nbytes if hasattr(buffer, "nbytes") else len(buffer) for buffer in buffers)
