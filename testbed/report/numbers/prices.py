"""What a run's WAN traffic would cost: egress prices per pair of regions, from `topologies/prices.csv`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from testbed import shipped
from testbed.errors import InputError
from testbed.wan import reading

PRICES = shipped.HERE / "topologies" / "prices.csv"
COLUMNS = ("src_region", "dst_region", "usd_per_gb")
NOTE = "AWS list price, volume discounts and free tier not included."
GB = 1e9  # bytes; a provider that bills by 2^30 bytes charges 7 % less than computed here


@cache
def prices(path: Path = PRICES) -> dict[str, float]:
    """US dollars per GB of every directed link "src>dst" that has a price; the sender pays.

    Raises
    ------
    InputError
        The file cannot be read, or a price in it is negative or no number.
    """
    table = reading.read_table(path, f"a price list has the columns {', '.join(COLUMNS)}")
    src, dst, price = (table.column(name) for name in COLUMNS)
    found = {}
    for row in table.rows:
        usd = row.number(price)
        if usd < 0:
            raise InputError(f"{row.where}: {price} is {usd:g}; it must not be negative")
        found[f"{row.region(src)}>{row.region(dst)}"] = usd
    return found


@cache
def sources(path: Path = PRICES) -> tuple[str, ...]:
    """What the prices are, and what the list says of itself: where they come from and when."""
    return (NOTE, *(line.lstrip("# ") for line in reading.read_table(path).comments))


def egress_usd(wan_bytes: Mapping[str, int]) -> float:
    """The price of the bytes of each directed link between regions; NaN where a link that was used has none."""
    known = prices()
    return sum(known.get(link, math.nan) * size / GB for link, size in wan_bytes.items() if size)


def unpriced(wan_bytes: Mapping[str, int]) -> list[str]:
    """The links that were used and have no price."""
    return [link for link, size in wan_bytes.items() if size and link not in prices()]
