"""The comparison for a narrow page: its panels one below the other; the page has the heading in words."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from testbed.record.reader import Run
from testbed.report.numbers.asked import timing_only
from testbed.report.pictures import parts
from testbed.report.pictures.kinds.comparison import bars_share, draw_panels, handle, taller
from testbed.report.pictures.registry import picture
from testbed.report.pictures.style import Sheet

WIDTH, PANEL = 4.8, 3.2  # inches: as wide as a phone at the sizes of its own text; a panel of losses
LEGEND_COLUMNS, LEGEND_ROW = 3, 0.24


@picture("stacked", wide=True)
def stacked(run: Run, frame: pd.DataFrame) -> Figure:
    """The comparison, its panels one below the other, for a narrow page."""
    handles = [handle(system) for system in dict.fromkeys(frame["system"])]
    columns = parts.columns_within(WIDTH, [str(one.get_label()) for one in handles], LEGEND_COLUMNS)
    bars = PANEL * min(bars_share(len(handles)), 1.0) + taller(len(handles))
    heights = [bars, bars] if timing_only(run.info) else [PANEL, PANEL, bars, bars]
    legend = LEGEND_ROW * -(-len(handles) // columns)
    figure = Sheet(WIDTH, sum(heights) + legend)
    draw_panels(list(figure.subplots(len(heights), 1, height_ratios=heights)), run, frame)
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)
    return figure
