"""What was asked of a link, what was measured, and the bound that decides; pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bound:
    """How far a measured value may lie from the one asked: `relative` of it or `absolute`, whichever is more."""

    relative: float = 0.0
    absolute: float = 0.0  # in the figure's unit

    def room(self, asked: float) -> float:
        """The largest difference allowed, in the figure's unit."""
        return max(self.relative * abs(asked), self.absolute)

    def holds(self, asked: float, measured: float) -> bool:
        return abs(measured - asked) <= self.room(asked)

    def text(self, unit: str) -> str:
        """In words: "± 2 % or 1 ms"."""
        parts = [f"{100 * self.relative:g} %"] if self.relative else []
        if self.absolute:
            parts.append(f"{self.absolute:g} {unit}")
        return f"± {' or '.join(parts)}"


@dataclass(frozen=True)
class Figure:
    """One comparison.

    Parameters
    ----------
    section : what kind of measurement, e.g. "goodput, alone"
    name : of what: a directed link, a link and a message size
    unit : of `asked` and `measured`
    asked : what the profile says
    measured : None where nothing came through
    bound : decides `ok`
    detail : further facts for the record, JSON values
    """

    section: str
    name: str
    unit: str
    asked: float
    measured: float | None
    bound: Bound
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.measured is not None and self.bound.holds(self.asked, self.measured)

    @property
    def off(self) -> float:
        """How far off, as a share of what the bound allows: above 1 the bound is missed."""
        if self.measured is None:
            return float("inf")
        return abs(self.measured - self.asked) / self.bound.room(self.asked)

    def record(self) -> dict[str, Any]:
        """As JSON values; what was not measured is null."""
        return {
            "section": self.section,
            "name": self.name,
            "unit": self.unit,
            "asked": self.asked,
            "measured": self.measured,
            "bound": self.bound.text(self.unit),
            "ok": self.ok,
            **self.detail,
        }


def number(value: float | None) -> str:
    """A value for a table: four digits, "none" where nothing came through."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(figures: Sequence[Figure]) -> str:
    """Plain text, one figure a line: link, what, asked, measured, bound."""
    head = ("link", "what", "asked", "measured", "bound")
    rows = [
        (
            figure.name,
            figure.section,
            f"{number(figure.asked)} {figure.unit}",
            f"{number(figure.measured)} {figure.unit}" if figure.measured is not None else "nothing",
            figure.bound.text(figure.unit),
        )
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    )
