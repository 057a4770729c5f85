"""The picture of `testbed plan`: how much of a step computes, by the rate that the WAN would have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.report.looks import look
from testbed.report.numbers.wording import number
from testbed.report.pictures import parts
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, settle

DASHES = ("-", "--", "-.", ":")
LEGEND_COLUMNS = 2


def draw(answer: Mapping[str, Any]) -> Sheet:
    """A line for each system and period of an answer (`testbed.harness.plan.answer`)."""
    rows = answer["systems"]
    seen: dict[str, int] = {}
    with drawing(COLUMN):
        figure = Sheet(4.6, 2.9, COLUMN)
        axes = figure.subplots()
        for row in rows:
            own, _, bits = row["system"].partition("-int")
            style, nth = look(own), seen.get(row["system"], 0)
            seen[row["system"]] = nth + 1
            label = f"{style.label}{f', {bits} bits' if bits else ''}"
            label += "" if row["period"] == 1 else f", every {row['period']:,}"
            factors, shares = zip(*row["share_at"], strict=True)
            axes.plot(
                factors,
                [100 * share for share in shares],
                color=style.color,
                ls=DASHES[nth % len(DASHES)],
                lw=0.9 if bits else 1.5,
                label=label,
            )
        axes.axvline(1.0, color=INK.text, lw=0.8, ls=parts.DASHES, zorder=1)
        axes.axhline(100 * answer["asked"]["share"], color=INK.text, lw=0.8, ls=":", zorder=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{number(value)}×")
        axes.set(xlabel="rate of the WAN (times the profile's)", ylabel="of a step computing (%)", ylim=(0, 102))
        axes.set_xlim(min(factors), max(factors))
        axes.set_title("What a faster WAN would bring")
        parts.legend(figure, axes.get_legend_handles_labels()[0], LEGEND_COLUMNS)
        settle(figure)
    return figure
