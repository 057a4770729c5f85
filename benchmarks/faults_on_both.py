"""Whether faults hold systems up as long on the emulated network as on the simulated one.

    python benchmarks/faults_on_both.py EMULATED VIRTUAL [SHIFTED ...] [--out results/reference/faults-emulated]

Each argument is the folder of a series over `faults` of as many steps: one on the emulated fabric, the same on the
virtual one, and the same on the virtual one with all faults a little sooner or later. TCP tries again at times that
double, so that where a fault ends near one of these a few milliseconds decide whether it takes this one or the next,
twice as late; the two fabrics' steps are some per cent apart, and not at the same place when a fault begins. What the
virtual fabric itself takes when the faults are shifted says where that is so.

Writes both.csv and both.md. Exit code 1: a stall is over 10 % outside of what the virtual runs take, or the time from a
fault's end to the next step is, and by more than the run's undisturbed step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import testbed
from testbed.record.series import grid
from testbed.report.looks import look
from testbed.report.numbers.disturbed import disturbed
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE, duration, is_missing

KEYS = ["point", "system", "seed"]
FIGURES = {"stall_s": "longest stall", "lost_s": "lost to faults", "recovery_s": "next step after a fault"}
JUDGED = ("stall_s", "recovery_s")
STEP = "step_s"
BOUND = 0.10
COLUMNS = ("virtual", "least", "most", "emulated", "off")


def measured(folder: Path) -> pd.DataFrame:
    """What faults cost in each run of a series."""
    series = testbed.load(folder)
    assert isinstance(series, testbed.Series)
    called = grid([folder / label for label in series.labels]).called
    frames = [disturbed(run).assign(point=called(label)) for label, run in zip(series.labels, series, strict=True)]
    return pd.concat([frame for frame in frames if len(frame)], ignore_index=True)[[*KEYS, *FIGURES, STEP]]


def side_by_side(emulated: pd.DataFrame, virtual: pd.DataFrame, shifted: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """A row for each run that both have.

    For each figure: `<figure>_virtual`, `_emulated` and how far that is off; `_least` and `_most` of all virtual runs,
    and how far the emulated one is outside of these, `_outside` (0 within).
    """
    frame = virtual.merge(emulated, on=KEYS, suffixes=["_virtual", "_emulated"])
    everywhere = pd.concat([virtual, *shifted]).groupby(KEYS)
    for name in FIGURES:
        least, most = (everywhere[name].agg(which).rename(f"{name}_{which}") for which in ("min", "max"))
        frame = frame.merge(least.reset_index(), on=KEYS).merge(most.reset_index(), on=KEYS)
        frame = frame.rename(columns={f"{name}_min": f"{name}_least", f"{name}_max": f"{name}_most"})
        there = frame[f"{name}_emulated"]
        frame[f"{name}_off"] = there / frame[f"{name}_virtual"] - 1
        nearest = there.clip(frame[f"{name}_least"], frame[f"{name}_most"])
        frame[f"{name}_outside"] = there / nearest - 1
    return frame


def misses(frame: pd.DataFrame, kind: str) -> dict[str, pd.Series]:
    """Which stalls and recoveries are over the bound, of those that are `off` or `outside`."""
    a_step_s = frame[[f"{STEP}_virtual", f"{STEP}_emulated"]].max(axis=1)
    found = {}
    for name in JUDGED:
        there = frame[f"{name}_emulated"]
        by_s = (there - there / (1 + frame[f"{name}_{kind}"])).abs()
        least_s = a_step_s if name == "recovery_s" else 0.0
        found[name] = (frame[f"{name}_{kind}"].abs() > BOUND) & (by_s > least_s)
    return found


def table(frame: pd.DataFrame) -> str:
    heads = ["faults", "system", *(f"{head}: {column}" for head in FIGURES.values() for column in COLUMNS)]
    writers = (duration, duration, duration, duration, "{:+.1%}".format)
    rows = []
    for row in frame.to_dict("records"):
        cells = []
        for name in FIGURES:
            figures = [row[f"{name}_{column}"] for column in COLUMNS]
            cells += [NONE if is_missing(it) else write(it) for it, write in zip(figures, writers, strict=True)]
        rows.append([row["point"], look(row["system"]).label, *cells])
    return markdown_table(heads, rows)


def verdict(frame: pd.DataFrame, shifted: int) -> tuple[str, bool]:
    """What came of it in words, and whether all is explained."""
    lines = []
    off, outside = misses(frame, "off"), misses(frame, "outside")
    for name in JUDGED:
        within = f"{(~off[name]).sum()} of {len(frame)} within {BOUND:.0%} of the same run on the virtual fabric"
        anywhere = f"{(~outside[name]).sum()} of what it takes there in {1 + shifted} runs with the faults shifted"
        lines.append(f"- {FIGURES[name]}: {within}, {anywhere}")
    for name in JUDGED:
        for row in frame[outside[name]].to_dict("records"):
            lines.append(f"- outside: {row['point']}, {row['system']}, {FIGURES[name]} {row[f'{name}_outside']:+.1%}")
    return "\n".join(lines), not any(which.any() for which in outside.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("emulated", type=Path)
    parser.add_argument("virtual", type=Path)
    parser.add_argument("shifted", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=Path("results/reference/faults-emulated"))
    options = parser.parse_args()
    shifted = [measured(folder) for folder in options.shifted]
    frame = side_by_side(measured(options.emulated), measured(options.virtual), shifted)
    said, explained = verdict(frame, len(shifted))
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.out / "both.csv", index=False, float_format="%.5g")
    (options.out / "both.md").write_text(f"{said}\n\n{table(frame)}\n")
    print(f"{table(frame)}\n\n{said}")
    return 0 if explained and len(frame) else 1


if __name__ == "__main__":
    sys.exit(main())
