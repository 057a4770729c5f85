"""What was asked of a link, what was measured, and the bound that decides; pure values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

ATTEMPTS = 3


@dataclass(frozen=True)
class Bound:
    """How far a measured value may lie from the one asked: `relative` of it or `absolute`, whichever is more.

    `side` "most" or "least" makes what is asked a limit instead: any value up to it, or any from it on, is in order.
    """

    relative: float = 0.0
    absolute: float = 0.0  # in the figure's unit
    side: Literal["both", "most", "least"] = "both"

    def room(self, asked: float) -> float:
        """The largest difference allowed, in the figure's unit."""
        return max(self.relative * abs(asked), self.absolute)

    def holds(self, asked: float, measured: float) -> bool:
        return self.off(asked, measured) <= 1

    def off(self, asked: float, measured: float) -> float:
        """How far off, as a share of what is allowed."""
        if self.side == "most":
            return measured / asked
        if self.side == "least":
            return asked / measured if measured else inf
        return abs(measured - asked) / self.room(asked)

    def text(self, unit: str) -> str:
        """In words: "± 2 % or 1 ms", "at most"."""
        if self.side != "both":
            return f"at {self.side}"
        parts = [f"{100 * self.relative:g} %"] if self.relative else []
        if self.absolute:
            parts.append(f"{self.absolute:g} {unit}")
        return f"± {' or '.join(parts)}"


@dataclass(frozen=True)
class Value:
    """One comparison.

    Parameters
    ----------
    section : what kind of measurement, e.g. "goodput, alone"
    name : of what: a directed link, a link and a message size
    unit : of `asked` and `measured`
    asked : what the profile says, or a limit
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
        return inf if self.measured is None else self.bound.off(self.asked, self.measured)

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


def settled(measure: Callable[[], list[Value]]) -> list[Value]:
    """What `measure` finds; while some figure misses its bound all are measured again, `ATTEMPTS` times at most.

    A machine that is busy for a moment makes a good link look bad, never a bad one good. The record keeps what was
    missed: `missed_before`.
    """
    figures = measure()
    missed: dict[tuple[str, str], list[float | None]] = {}  # by section and name
    for _ in range(ATTEMPTS - 1):
        late = [figure for figure in figures if not figure.ok]
        if not late:
            break
        for figure in late:
            missed.setdefault((figure.section, figure.name), []).append(figure.measured)
        figures = measure()
    before = {key: {"missed_before": values} for key, values in missed.items()}
    return [replace(figure, detail=figure.detail | before.get((figure.section, figure.name), {})) for figure in figures]


def number(value: float | None) -> str:
    """A value for a table: four digits, "none" where nothing came through."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(figures: Sequence[Value]) -> str:
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
