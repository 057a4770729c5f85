"""Values in words, the same in every table and picture."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from testbed.report.looks import clocks

NONE = "–"
NOT_REACHED = "not reached"
NOT_KNOWN = "not known"
NO_EXCHANGE = "no exchange yet"


def is_missing(value: object) -> bool:
    """Whether a cell is empty."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def number(value: float, digits: int = 3, most_decimals: int = 12) -> str:
    """Plain, with `digits` significant digits but whole numbers whole: 0.0123, 5.36, 12.4, 1,234."""
    if is_missing(value):
        return NONE
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    value = float(f"{value:.{digits}g}") if abs(value) < 10**digits else value  # 0.9996 is 1.00, not 1.000
    decimals = min(most_decimals, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{decimals}f}"


def times(value: float) -> str:
    """A ratio: 5.36×."""
    return NONE if is_missing(value) else f"{number(value, most_decimals=2)}×"


def percent(fraction: float) -> str:
    """A fraction as percent with one decimal: 47.2 %."""
    return NONE if is_missing(fraction) else f"{100 * fraction:.1f} %"


def share(fraction: float) -> str:
    """A part of a whole as percent, below one percent with two digits: 47.2 %, 0.058 %."""
    return f"{100 * fraction:.2g} %" if 0 <= fraction < 0.01 else percent(fraction)


def dollars(usd: float) -> str:
    """US dollars to the cent, or to three digits below one: $12.40, $0.0213."""
    if is_missing(usd):
        return NONE
    return f"${usd:,.2f}" if usd >= 1 or usd == 0 else f"${number(usd)}"


def size(size_bytes: float) -> str:
    """Bytes in decimal units: 1.23 GB."""
    if is_missing(size_bytes):
        return NONE
    scaled = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if scaled < 999.5 or unit == "TB":
            break
        scaled /= 1000
    return f"{scaled:.0f} B" if unit == "B" else f"{number(scaled)} {unit}"


def duration(time_s: float) -> str:
    """Seconds as one reads a clock: 0.82 s, 42.1 s, 6 min 05 s, 3 h 20 min."""
    if is_missing(time_s):
        return NONE
    if time_s < 99.95:
        return f"{number(time_s)} s"
    minutes, seconds = divmod(round(time_s), 60)
    if minutes < 100:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def clock(fabrics: Iterable[str]) -> str:
    """What the times are that were taken on these fabrics: "emulated time", "virtual time", or plain "time"."""
    kinds = {clocks().get(fabric, "time") for fabric in fabrics}
    return kinds.pop() if len(kinds) == 1 else "time"
