"""What the papers report, from `papers.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_name("papers.toml")


class Figure(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One number of a paper: a speedup of `system` over `versus`, or a test accuracy (fraction) of `system`."""

    source: str
    where: str  # section, table or figure
    conditions: str
    quantity: str
    system: str
    value: float
    model: str = ""  # "" stands for several models
    versus: str = ""
    low: float | None = None  # the lower end of a range whose upper end is `value`


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    sources: dict[str, str]
    figure: list[Figure]


@cache
def _table() -> _Table:
    return msgspec.toml.decode(TABLE.read_bytes(), type=_Table)


def figures(model: str) -> list[Figure]:
    """The papers' figures for a model, and those that hold for several models."""
    return [figure for figure in _table().figure if figure.model in ("", model)]


def citation(figure: Figure) -> str:
    """Paper and place in it."""
    return f"{_table().sources[figure.source]}, {figure.where}"
