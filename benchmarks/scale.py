"""What a message costs the virtual fabric, from 2 workers to 10,000: roles of a tree that do no math.

    python benchmarks/scale.py [--out results/reference/scale]

Writes scale.csv, scale.md and scale.png; times are of one core's, on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from testbed.fidelity import speed
from testbed.report.numbers.tables import markdown_table
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, settle

WORKERS = (1, 2, 4, 16, 64, 256, 1024, 5000)  # of each of two regions
LEAST_STEPS = 20
HOW = {True: "one worker plays for its region", False: "each worker plays"}


def measured() -> pd.DataFrame:
    """A row for each number of workers and way to play them."""
    rows = []
    for folds in HOW:
        for workers in WORKERS:
            messages = max(speed.MESSAGES, LEAST_STEPS * 4 * (workers + 1))
            rate = speed.messages_per_s(speed.uniform(2), workers, messages, folds)
            rows.append({"played": HOW[folds], "workers": 2 * workers, "us_per_message": 1e6 / rate})
    return pd.DataFrame(rows)


def draw(frame: pd.DataFrame) -> Sheet:
    """Microseconds a message by the number of workers."""
    with drawing(COLUMN):
        figure = Sheet(4.6, 2.9, COLUMN)
        axes = figure.subplots()
        for (played, rows), dashes in zip(frame.groupby("played", sort=False), ("-", "--"), strict=True):
            axes.plot(rows["workers"], rows["us_per_message"], color=INK.text, ls=dashes, marker="o", label=played)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(xlabel="workers", ylabel="CPU time a message (µs)", title="What a message costs to simulate")
        axes.set_ylim(bottom=0)
        axes.legend()
        settle(figure)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/reference/scale"))
    options = parser.parse_args()
    frame = measured()
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.out / "scale.csv", index=False, float_format="%.3g")
    cells = [[row.played, f"{row.workers:,}", f"{row.us_per_message:.1f}"] for row in frame.itertuples()]
    (options.out / "scale.md").write_text(markdown_table(["played", "workers", "µs a message"], cells) + "\n")
    draw(frame).savefig(options.out / "scale.png")
    print((options.out / "scale.md").read_text(), end="")


if __name__ == "__main__":
    main()
