"""The answer of `testbed plan`, in words and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from testbed.report.looks import look
from testbed.report.numbers import prices
from testbed.report.numbers.wording import NONE, dollars, duration, number, percent, size
from testbed.report.terminal import plain_unless_terminal, rich_table

Answer = Mapping[str, Any]
MORE = 1.005  # times the WAN's rate: below, it has enough as it is


def title(answer: Answer) -> str:
    """What is planned, in a line."""
    asked = answer["asked"]
    where = ", ".join(asked["regions"])
    what = f"A gradient of {size(asked['gradient_bytes'])}" if asked["model"] == "vector" else asked["model"]
    return f"{what}, {number(asked['parameters'] / 1e6)} million parameters, in {where}"


def conditions(answer: Answer) -> str:
    """What the numbers hold for."""
    it = answer["asked"]
    rates = it["wan_mbit"].values()
    wan = f"WAN {number(min(rates))} to {number(max(rates))} Mbit/s" if rates else "no WAN"
    parts = [
        f"profile {it['profile']}",
        wan,
        f"LAN {number(it['lan_mbit'])} Mbit/s",
        f"{len(it['regions'])} × {it['workers_per_region']} workers",
        f"global server in {it['server_region']}",
        f"device {it['device']}",
        f"a gradient takes {duration(it['gradient_s'])}",
        f"{size(it['gradient_bytes'])} in float32",
    ]
    return " · ".join(parts)


def table(answer: Answer) -> tuple[list[str], list[list[str]]]:
    """Heads and cells: a row for each system and period."""
    shares = [f"{answer['asked']['share']:g}"]
    heads = ["system", "syncs every", "a step", "computing", "WAN bytes", "busiest link", "egress"]
    heads += [f"{percent_of(share)} needs" for share in shares] + ["steps to target"]
    cells = []
    for row in answer["systems"]:
        usd = row["usd_per_day"]
        link = row["busiest_link"]
        day = size(row["day_bytes"][link]) if link else NONE
        cells.append(
            [
                name_of(row["system"]),
                _period(row["period"]),
                duration(row["step_s"]),
                percent(row["compute_share"]),
                f"{size(row['wan_bytes_per_step'])} a step",
                f"{day} a day",
                NONE if usd is None else f"{dollars(usd)} a day",
                *(_rate(row["rate_for"][share], answer["asked"]["wan_mbit"]) for share in shares),
                _steps(row["steps_to_target"]),
            ]
        )
    return heads, cells


def links(answer: Answer) -> tuple[list[str], list[list[str]]]:
    """Heads and cells: what each link carries in a day, and its list price, a row for each system and period."""
    rates = answer["asked"]["wan_mbit"]
    heads = ["system", "syncs every", *(f"{link}, {number(mbit)} Mbit/s" for link, mbit in rates.items())]
    cells = [
        [name_of(row["system"]), _period(row["period"]), *(_day(row, link) for link in rates)]
        for row in answer["systems"]
    ]
    return heads, cells


def _day(row: Mapping[str, Any], link: str) -> str:
    carried, usd = row["day_bytes"].get(link, 0.0), row["day_usd"].get(link)
    return size(carried) + ("" if usd is None else f", ${usd:,.2f}")


def percent_of(share: str) -> str:
    """A share, the key of an answer, as a head."""
    return f"{100 * float(share):g} %"


def name_of(system: str) -> str:
    """A system as tables call it; a plan's second of a kind keeps what tells it from the first."""
    own, _, rest = system.partition("-int")
    return f"{look(own).label}, {rest} bits" if rest else look(system).label


def _period(period: int) -> str:
    return "step" if period == 1 else f"{period:,} steps"


def _rate(factor: float | None, wan_mbit: Mapping[str, float]) -> str:
    """Times the rate of the WAN, and what its slowest link then has."""
    if factor is None:
        return "no rate does"
    return "as it is" if factor <= MORE else f"{number(factor)}×, {number(factor * min(wan_mbit.values()))} Mbit/s"


def _steps(known: Mapping[str, float | None] | None) -> str:
    if known is None:
        return "not known"
    if known["low"] is None:
        return f"{known['ratio']:.2f}× (one seed)"
    return f"{known['ratio']:.2f}× ({known['low']:.2f} to {known['high']:.2f})"


def sentences(answer: Answer) -> list[str]:
    """What is recommended, why, and what would change it."""
    said = []
    for share, choice in answer["recommended"].items():
        what = _recommended(choice) if choice else _nearest(answer, share)
        said.append(f"For {percent_of(share)} of a step computing: {what}.")
    asked = answer["asked"]["share"]
    now = answer["recommended"][f"{asked:g}"]
    for words, choice in answer["would_change"].items():
        same = (choice and (choice["system"], choice["period"])) == (now and (now["system"], now["period"]))
        said.append(
            f"With {words} it would be {'the same' if same else _short(choice)} for {percent_of(f'{asked:g}')}."
        )
    priced = any(usd is not None for row in answer["systems"] for usd in row["day_usd"].values())
    return [*said, *([f"Egress: {prices.NOTE}"] if priced else []), *answer["notes"]]


def _recommended(choice: Mapping[str, Any]) -> str:
    cost = "" if choice["usd_per_day"] is None else f", {dollars(choice['usd_per_day'])} of egress a day"
    why = f" ({choice['departs']})" if choice["departs"] else ""
    return f"{_short(choice)}{why}: {duration(choice['step_s'])} a step{cost}"


def _nearest(answer: Answer, share: str) -> str:
    """What to say where nothing has the share: which would have it on a faster WAN, if any."""
    faster = [row for row in answer["systems"] if row["rate_for"][share] is not None]
    if not faster:
        return "none of these, whatever the WAN's rate; its round trips, the LAN and coding alone take too long"
    nearest = min(faster, key=lambda row: row["rate_for"][share])
    return f"none of these; {_short(nearest)} would have it at {number(nearest['rate_for'][share])}× the WAN's rate"


def _short(choice: Mapping[str, Any] | None) -> str:
    if choice is None:
        return "none"
    every = "" if choice["period"] == 1 else f" every {choice['period']:,} steps"
    return f"{name_of(choice['system'])}{every}"


def show(answer: Answer, console: Console | None = None) -> None:
    """Print the answer."""
    console = plain_unless_terminal(console)
    console.print(rich_table(title(answer), *table(answer)))
    console.print(escape(conditions(answer)), style="dim")
    for sentence in sentences(answer):
        console.print(escape(sentence), style="bold" if sentence.startswith("For") else None)
