"""The map of our own system from what `own_grid` found: tables, sentences and a picture.

    python benchmarks/own_grid/own_map.py [FOLDER]

Reads systems.csv (each system and seed in each cell: when the reported model is at the target, and when every worker
holds one that is) and, where they are there, finals.csv (final metrics) and wholes.csv of the folder, and writes
grid.csv, grid.md and grid.png into it: in each cell our speedup over the best other system, the geometric mean over the
seeds with its 95 % interval, wider by what lies between two tests; which one that is; and the part of its time that is
neither computing nor coding, without which it would be there in `alone_s`: nobody who makes as many steps can be
sooner. A system of which a seed misses the target is not the best.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import exp, nan
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Rectangle

from testbed.files import write_whole
from testbed.report.looks import look
from testbed.report.numbers.interval import half_width, of_ratios
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE, duration, percent, times
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, save

OURS = "concord"
MOST, AIM = 0.5, 2.0  # part of its time that the other spends on communication, where we aim at so many times as fast
WIDE = 16  # characters that a cell has room for
KEYS = ["workload", "profile", "device"]
MAPS = {"target_s": "reported", "held_s": "held by every worker"}  # systems.csv's columns
FIGURES = ["waiting", "other_s", "alone_s", "ours_s", "speedup", "low", "high"]


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each cell and map: the best other system, and how much sooner ours is there."""
    rows = []
    for keys, here in frame.groupby(KEYS, sort=False):
        for kind in MAPS:
            rows.append(dict(zip(KEYS, keys, strict=True)) | {"map": kind} | _of_cell(here, kind))
    return pd.DataFrame(rows)


def _of_cell(here: pd.DataFrame, kind: str) -> dict[str, Any]:
    reached = here.pivot(index="system", columns="seed", values=kind).dropna()
    row: dict[str, Any] = dict.fromkeys(FIGURES, nan) | {"best_other": ""}
    others = reached.drop(index=OURS, errors="ignore")
    if not len(others):
        return row
    best = np.log(others).mean(axis=1).idxmin()
    resolution = here.groupby("system")["resolution"].mean()
    other_s = exp(np.log(others.loc[best]).mean())
    alone_s = exp(np.log(here[here["system"] == best]["computing_s"]).mean())
    row |= {"best_other": best, "other_s": other_s, "alone_s": alone_s, "waiting": 1 - alone_s / other_s}
    if OURS in reached.index:
        row["ours_s"] = exp(np.log(reached.loc[OURS]).mean())
        open_ = resolution[OURS] + resolution[best]
        found = of_ratios(others.loc[best] / reached.loc[OURS], open_)
        row |= dict(zip(("speedup", "low", "high"), found, strict=True))
    return row


def markdown(frame: pd.DataFrame) -> str:
    """A table for each map."""
    return "\n".join(f"{heading(kind)}\n\n{_table(frame[frame['map'] == kind])}\n" for kind in MAPS)


def in_short(frame: pd.DataFrame) -> str:
    """A sentence for each workload and map: in how many cells ours is ahead, as far as seeds tell, and by twice."""
    said = []
    for (workload, kind), cells in frame.dropna(subset="speedup").groupby(["workload", "map"], sort=False):
        waits = cells[cells["waiting"] > MOST]
        least = times(cells["speedup"].min())
        won = f"ahead in {(cells['speedup'] > 1).sum()} of {len(cells)} cells, {least} at least in each"
        open_ = f"{(cells['low'] < 1).sum()} intervals reach below 1"
        twice = f"{(waits['speedup'] >= AIM).sum()} of {len(waits)} where the other waits for over half of its time"
        said.append(f"- {workload}, {MAPS[kind]}: {won}; {open_}; at least twice as soon in {twice}.")
    return "\n".join(said)


def heading(kind: str) -> str:
    return f"The target is reached by the model that is {MAPS[kind]}:"


def _table(frame: pd.DataFrame) -> str:
    heads = [*KEYS, "best other", "speedup", "95 %", "ours", "its time", "of it waiting", "if it never waited"]
    rows = []
    for row in frame.to_dict("records"):
        interval = NONE if pd.isna(row["low"]) else f"{row['low']:.2f} to {row['high']:.2f}"
        other, alone, ours = (_or_none(row[key], duration) for key in ("other_s", "alone_s", "ours_s"))
        waits, speedup = _or_none(row["waiting"], percent), _or_none(row["speedup"], times)
        here = [*(row[key] for key in KEYS), label(row["best_other"])]
        rows.append([*here, speedup, interval, ours, other, waits, alone])
    return markdown_table(heads, rows)


def label(system: str) -> str:
    """A system's name in words, with what `own_grid` has added to it: a period of three digits, "brief" or "fast"."""
    name, _, period = system.rpartition("-")
    if period in ("brief", "fast") or (period.isdigit() and len(period) == 3):
        return f"{label(name)}, {period}"
    return look(system).label if system else NONE


def of_finals(frame: pd.DataFrame) -> str:
    """A sentence for each workload and device, and for as many steps and as much time."""
    said = []
    for (workload, device, alike), here in frame.groupby(["workload", "device", "alike"], sort=False):
        by_seed = here.pivot(index="seed", columns="system", values="metric")
        ended = here.groupby("system")[["steps", "held_s"]].mean()
        means = ", ".join(
            f"{label(name)} {by_seed[name].mean():.4g} ({row['steps']:.0f} steps, {duration(row['held_s'])})"
            for name, row in ended.iterrows()
        )
        line = f"- {workload}, {device}, as {'many steps' if alike == 'steps' else 'much time'}: {means}"
        for name in (each for each in by_seed if each != OURS):
            apart = (by_seed[OURS] - by_seed[name]).to_numpy()
            wide = half_width(apart) if len(apart) > 1 else nan
            line += f"; ours less that of {label(name)}, paired: {apart.mean():+.4g} ± {wide:.2g}"
        said.append(line + ".")
    return "\n".join(said)


def of_wholes(frame: pd.DataFrame) -> str:
    """A sentence for each cell whose best other was played there, with what it was timed at."""
    said = []
    for (workload, profile, device, system), here in frame.groupby([*KEYS, "system"], sort=False):
        played, timed = (duration(exp(np.log(here[column]).mean())) for column in ("target_s", "timed_s"))
        said.append(f"- {workload}, {profile}, {device}: {label(system)}, played {played}, timed {timed}.")
    return "\n".join(said)


def _or_none(value: float, write: Callable[[Any], str]) -> str:
    return NONE if pd.isna(value) else write(value)


def draw(frame: pd.DataFrame) -> Sheet:
    """A row for each map, a column for each workload; frames mark where the other waits for over half of its time."""
    workloads = list(dict.fromkeys(frame["workload"]))
    with drawing(COLUMN):
        figure = Sheet(3.45 * len(workloads), 2.7 * len(MAPS) + 0.2, COLUMN)
        norm = TwoSlopeNorm(0.0, -1.0, max([1.0, *np.log2(frame["speedup"].dropna())]))
        grid = figure.subplots(len(MAPS), len(workloads), squeeze=False)
        for row, (kind, name) in zip(grid, MAPS.items(), strict=True):
            for axes, workload in zip(row, workloads, strict=True):
                _map(axes, frame[(frame["workload"] == workload) & (frame["map"] == kind)], norm)
                axes.set_title(f"{workload}: {name}")
        figure.suptitle(f"{look(OURS).label} against the best other system", x=0.01, ha="left", fontweight="bold")
    return figure


def _map(axes: Axes, here: pd.DataFrame, norm: TwoSlopeNorm) -> None:
    profiles, devices = (list(dict.fromkeys(here[key])) for key in ("profile", "device"))
    grid = here.pivot(index="profile", columns="device", values="speedup").loc[profiles, devices]
    axes.imshow(np.ma.masked_invalid(np.log2(grid)), cmap="PuOr", norm=norm, aspect="auto")
    axes.set_xticks(range(len(devices)), devices)
    axes.set_yticks(range(len(profiles)), profiles)
    axes.grid(visible=False)
    for row in here.itertuples():
        x, y = devices.index(row.device), profiles.index(row.profile)
        said = _or_none(row.speedup, lambda value: f"{value:.2f}×")
        other = fill(label(row.best_other), WIDE) if row.best_other else "nobody"
        back = axes.text(x, y, f"{said}\n{other}", ha="center", va="center", fontsize=6, color=INK.text)
        back.set_bbox({"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1})
        if row.waiting > MOST:
            axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, ec=INK.text, lw=1.2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results/reference/own"))
    folder: Path = parser.parse_args().folder
    cells = compared(pd.read_csv(folder / "systems.csv"))
    said = f"{markdown(cells)}\nIn short:\n\n{in_short(cells)}\n"
    if (last := folder / "finals.csv").is_file():
        held = "Final metrics on the file's own network, of the model that every worker holds in the end"
        said += f"\n{held}:\n\n{of_finals(pd.read_csv(last))}\n"
    if (whole := folder / "wholes.csv").is_file():
        said += f"\nPlayed in the cell, where ours is twice as soon as who waits:\n\n{of_wholes(pd.read_csv(whole))}\n"
    cells.to_csv(folder / "grid.csv", index=False, float_format="%.6g")
    write_whole(folder / "grid.md", said)
    save(draw(cells), folder / "grid.png")
    print(said)


if __name__ == "__main__":
    main()
