"""How a system looks in every picture and table, from `looks.toml`, and what a fabric's time is called there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from zlib import crc32

import msgspec

TABLE = Path(__file__).with_name("looks.toml")
CLOCKS = Path(__file__).with_name("clocks.toml")


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Label, colour (hex), marker and line style in matplotlib's terms."""

    label: str
    color: str
    marker: str
    line: str


@cache
def known() -> dict[str, Look]:
    """The looks that `looks.toml` fixes."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, Look])


@cache
def clocks() -> dict[str, str]:
    """What the time of a run is called, by the name of its fabric: "emulated time"."""
    return msgspec.toml.decode(CLOCKS.read_bytes(), type=dict[str, str])


def look(system: str) -> Look:
    """The look of a system; one that the file does not name gets one that depends on its name alone.

    It is dash-dotted, in the colour of one of the rarer systems.
    """
    if (fixed := known().get(system)) is not None:
        return fixed
    palette = sorted((one for one in known().values() if one.line != "-"), key=lambda one: one.label)
    choice = crc32(system.encode())
    return Look(system, palette[choice % len(palette)].color, palette[choice // 64 % len(palette)].marker, "-.")
