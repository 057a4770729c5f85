"""Whether faults hold systems up as long on the emulated network as on the simulated one.

    python benchmarks/faults_on_both.py VIRTUAL EMULATED [--shifted VIRTUAL ...] [--out FOLDER]

Each argument is the folder of a series over `faults` of as many steps; what both have is set side by side. In the
`--shifted` ones all faults begin a little sooner or later: the two fabrics' steps, some per cent apart, are not at the
same place when a fault begins, so what moves the simulated figure as far is not known better than that.
Writes both.csv and both.md. Exit code 1: a stall is over 10 % off all that the simulation makes of it, or the time from
a fault's end to the next step is, and by more than the run's undisturbed step: a fault ends somewhere within a step.
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
STEP = "step_s"
BOUND = 0.10
FABRICS = ("virtual", "emulated")


def measured(folder: Path) -> pd.DataFrame:
    """What faults cost in each run of a series."""
    series = testbed.load(folder)
    assert isinstance(series, testbed.Series)
    called = grid([folder / label for label in series.labels]).called
    frames = [disturbed(run).assign(point=called(label)) for label, run in zip(series.labels, series, strict=True)]
    return pd.concat([frame for frame in frames if len(frame)], ignore_index=True)[[*KEYS, *FIGURES, STEP]]


def side_by_side(virtual: pd.DataFrame, emulated: pd.DataFrame) -> pd.DataFrame:
    """A row for each run that both have; the emulated figure against the virtual one as `<figure>_off`."""
    frame = virtual.merge(emulated, on=KEYS, suffixes=[f"_{name}" for name in FABRICS])
    for name in FIGURES:
        frame[f"{name}_off"] = frame[f"{name}_emulated"] / frame[f"{name}_virtual"] - 1
    return frame


def with_range(frame: pd.DataFrame, shifted: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The least and the most that the simulation makes of each figure, and how far off those the emulated one is."""
    every = pd.concat(
        [frame.rename(columns={f"{name}_virtual": name for name in FIGURES})[[*KEYS, *FIGURES]], *shifted]
    )
    grouped = every.groupby(KEYS, as_index=False)[list(FIGURES)]
    for suffix, found in (("least", grouped.min()), ("most", grouped.max())):
        frame = frame.merge(found.rename(columns={name: f"{name}_{suffix}" for name in FIGURES}), on=KEYS)
    for name in FIGURES:
        nearest = frame[f"{name}_emulated"].clip(frame[f"{name}_least"], frame[f"{name}_most"])
        frame[f"{name}_beyond"] = frame[f"{name}_emulated"] / nearest - 1
    return frame


def beyond(frame: pd.DataFrame) -> list[str]:
    """Which stalls and recoveries are not as they should be."""
    recovered_s = frame["recovery_s_emulated"]
    later_s = (recovered_s - recovered_s.clip(frame["recovery_s_least"], frame["recovery_s_most"])).abs()
    a_step_s = frame[[f"{STEP}_{name}" for name in FABRICS]].max(axis=1)
    wrong = {
        "stall_s": frame["stall_s_beyond"].abs() > BOUND,
        "recovery_s": (frame["recovery_s_beyond"].abs() > BOUND) & (later_s > a_step_s),
    }
    return [
        f"{row['point']}, {row['system']}: {FIGURES[name]} {row[f'{name}_beyond']:+.1%}"
        for name, which in wrong.items()
        for row in frame[which].to_dict("records")
    ]


def table(frame: pd.DataFrame) -> str:
    columns = (*FABRICS, "off", "shifted")
    heads = ["faults", "system", *(f"{head}: {column}" for head in FIGURES.values() for column in columns)]
    rows = []
    for row in frame.to_dict("records"):
        cells = []
        for name in FIGURES:
            figures = [row[f"{name}_{each}"] for each in (*FABRICS, "off")]
            writers = (duration, duration, "{:+.1%}".format)
            cells += [NONE if is_missing(it) else write(it) for it, write in zip(figures, writers, strict=True)]
            least, most = row[f"{name}_least"], row[f"{name}_most"]
            cells.append(NONE if is_missing(least) else f"{duration(least)} to {duration(most)}")
        rows.append([row["point"], look(row["system"]).label, *cells])
    return markdown_table(heads, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("virtual", type=Path)
    parser.add_argument("emulated", type=Path)
    parser.add_argument("--shifted", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("results/reference/faults-emulated"))
    options = parser.parse_args()
    frame = side_by_side(measured(options.virtual), measured(options.emulated))
    frame = with_range(frame, [measured(folder)[[*KEYS, *FIGURES]] for folder in options.shifted])
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.out / "both.csv", index=False, float_format="%.5g")
    (options.out / "both.md").write_text(table(frame) + "\n")
    print(table(frame))
    for name, figure in FIGURES.items():
        off = frame[f"{name}_off"].abs()
        print(
            f"{figure}: median {off.median():.1%} off, worst {off.max():.1%}, {(off <= BOUND).sum()} of"
            f" {off.notna().sum()} runs within {BOUND:.0%}"
        )
    wrong = beyond(frame)
    print("\n".join(["beyond the bound:", *wrong] if wrong else [f"all {len(frame)} runs within the bound"]))
    return 1 if wrong or not len(frame) else 0


if __name__ == "__main__":
    sys.exit(main())
