"""How much sooner `concord` reaches the target than the best other system, over networks, devices and workloads.

    python benchmarks/own_grid.py [--profiles lan,wanify-8] [--devices m60] [--workloads own] [--systems a,b]
                                  [--seeds 0,1,2] [--set KEY=VALUE] [--trials 8] [--records build/own] [--out DIR]

Three stages, each of which goes on where it was stopped:

1. Systems are tuned alike on the workload's file (`testbed tune`; `--trials 0` takes the file as it stands).
2. Every system is played on the file's own network and device, which tells how many steps it needs, seed by seed. Of
   those that overlap (`OVERLAPS`) that depends on the network, and they are played whole in every cell.
3. In every cell all others are timed (`--timing-only`, with the sizes that stage 2 recorded): time to the target is the
   steps of stage 2 times the time of a step here.

Writes grid.csv, grid.md and grid.png: in each cell our speedup over the best other system, the geometric mean over the
seeds with its 95 % interval; which one that is; and the part of its step that is neither computing nor coding. A system
of which a seed misses the target is not the best. The time to the target is that of the model that a system reports;
what it takes until every worker holds ours is beside it (`held_s`).
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Rectangle

import testbed
from testbed.experiment.load import load
from testbed.files import write_whole
from testbed.interpreter import testbed as command
from testbed.report.looks import look
from testbed.report.numbers.interval import half_width
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE, duration, percent, times
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, save

OURS = "concord"
OVERLAPS = (OURS,)  # whose steps to a target depend on how long the network takes
PROFILES = {
    "weightgrad-ec2": (("us-west-1", "us-east-1"), "us-east-2"),
    "wanify-8": (("us-west-1", "ap-northeast-1"), "us-east-1"),
    "skyplane-22": (("us-east-1", "eu-west-1", "ap-northeast-1", "ap-southeast-2"), "us-west-2"),
    "residential": (("home-1", "home-2"), "home-3"),
    "lan": (("us-west-1", "us-east-1"), "us-east-2"),
}
DEVICES = ("m60", "l40s", "h100")
WORKLOADS = ("own", "own-gpt")
MOST = 0.5  # part of its step that the other spends on communication: there we aim at twice as fast
KEYS = ["workload", "profile", "device"]
FIGURES = ["waiting", "other_s", "ours_s", "speedup", "low", "high", "held_s"]


@dataclass(frozen=True)
class Plan:
    """What is asked for; `records` is the folder of all runs."""

    profiles: tuple[str, ...]
    devices: tuple[str, ...]
    workloads: tuple[str, ...]
    systems: tuple[str, ...]
    seeds: tuple[str, ...]
    changes: tuple[str, ...]
    trials: int
    records: Path

    @property
    def changed(self) -> list[str]:
        """Keys of the files that are changed, on the command line."""
        return [part for change in self.changes for part in ("--set", change)]


def called(*arguments: str) -> None:
    """Run `testbed`; an error ends this script, too."""
    subprocess.run(command(*arguments), check=True)


def played(plan: Plan, folder: Path, experiment: str, *arguments: str) -> testbed.Run:
    """The run in a folder, begun or gone on with where it is not done."""
    kept = sorted((folder / Path(experiment).stem).glob("*/run.json"))
    if kept:
        called("run", "--resume", str(kept[-1].parent), "--quiet")
    else:
        called("run", experiment, "--out", str(folder), "--quiet", *plan.changed, *arguments)
    run = testbed.load(sorted((folder / Path(experiment).stem).glob("*/run.json"))[-1].parent)
    assert isinstance(run, testbed.Run)
    return run


def tuned(plan: Plan, workload: str) -> str:
    """The file of a workload with every system tuned."""
    if not plan.trials:
        return workload
    to = plan.records / f"{workload}-tuned.toml"
    if not to.is_file():
        searched = ["--out", str(plan.records / f"tune-{workload}"), "--seeds", "100", "--trials", str(plan.trials)]
        called(
            "tune", workload, *plan.changed, "--systems", ",".join(systems(plan, workload)), *searched, "--to", str(to)
        )
    return str(to)


def systems(plan: Plan, workload: str) -> list[str]:
    """Those asked for, or all of the file."""
    return list(plan.systems) or list(load(workload)[0].experiment.systems)


def cell(profile: str, device: str) -> list[str]:
    """A network and a device, on the command line."""
    regions, server = PROFILES[profile]
    listed = ", ".join(f'"{region}"' for region in regions)
    settings = {
        "topology.profile": f'"{profile}"',
        "topology.regions": f"[{listed}]",
        "topology.server_region": f'"{server}"',
        "compute.device": f'"{device}"',
    }
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def measured(plan: Plan, workload: str) -> list[pd.DataFrame]:
    """Every system and seed in every cell: `target_s`, `waiting` (of a step), and of ours `held_s`."""
    experiment, folder, frames = tuned(plan, workload), plan.records / workload, []
    seeds = ["--seeds", ",".join(plan.seeds)]
    others = [name for name in systems(plan, workload) if name not in OVERLAPS]
    base = played(plan, folder / "base", experiment, "--systems", ",".join(others), *seeds)
    steps = base.summary.set_index(["system", "seed"])["steps_to_target"]
    for profile in plan.profiles:
        for device in plan.devices:
            here, where = folder / f"{profile}-{device}", cell(profile, device)
            whole = played(plan, here / "whole", experiment, "--systems", ",".join(OVERLAPS), *seeds, *where)
            sized = ["--timing-only", "--sizes", str(base.folder), "--systems", ",".join(others)]
            timed = played(plan, here / "timed", experiment, *sized, "--seeds", plan.seeds[0], *where)
            ours = whole.summary.assign(target_s=whole.summary["time_to_target_s"], held_s=ends(whole))
            rows = [ours, *(_each_seed(timed.summary, steps, seed) for seed in map(int, plan.seeds))]
            frame = pd.concat(rows, ignore_index=True)
            frame["waiting"] = 1 - (frame["mean_compute_s"] + frame["mean_codec_s"]) / frame["mean_step_s"]
            columns = ["system", "seed", "target_s", "held_s", "mean_step_s", "waiting"]
            frames.append(frame[columns].assign(workload=workload, profile=profile, device=device))
    return frames


def _each_seed(timed: pd.DataFrame, steps: pd.Series, seed: int) -> pd.DataFrame:
    """What a system takes with a seed: its steps with that one times the time of a step."""
    needed = [steps.get((system, seed)) for system in timed["system"]]
    steps_to = pd.to_numeric(pd.Series(needed, timed.index), errors="coerce")
    return timed.assign(seed=seed, target_s=steps_to.astype(float) * timed["mean_step_s"])


def ends(run: testbed.Run) -> list[float]:
    """When the average of a run is held by every worker: at its last test, which is after all messages."""
    tests = run.evaluations[~run.evaluations["probe"].astype(bool)]
    last = tests.groupby(["system", "seed"])["time_s"].max()
    return [float(last[row.system, row.seed]) for row in run.summary.itertuples()]


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each cell: the best other system, and how much sooner ours is there."""
    rows = []
    for keys, here in frame.groupby(KEYS, sort=False):
        target_s = here.pivot(index="system", columns="seed", values="target_s")
        reached = target_s.dropna()
        row = dict(zip(KEYS, keys, strict=True)) | dict.fromkeys(FIGURES, np.nan) | {"best_other": ""}
        others = reached.drop(index=OURS, errors="ignore")
        if len(others):
            best = np.log(others).mean(axis=1).idxmin()
            row |= {"best_other": best, "other_s": exp(np.log(others.loc[best]).mean())}
            row["waiting"] = here[here["system"] == best]["waiting"].mean()
            if OURS in reached.index:
                ratios = np.log(others.loc[best] / reached.loc[OURS]).to_numpy()
                wide = half_width(ratios) if len(ratios) > 1 else np.nan
                mean = float(ratios.mean())
                row |= {"ours_s": exp(np.log(reached.loc[OURS]).mean()), "speedup": exp(mean)}
                row |= {"low": exp(mean - wide), "high": exp(mean + wide)}
        row["held_s"] = here[here["system"] == OURS]["held_s"].mean()
        rows.append(row)
    return pd.DataFrame(rows)


def markdown(frame: pd.DataFrame) -> str:
    heads = [*KEYS, "best other", "its step waits", "its time", "ours", "speedup", "95 %", "until all hold ours"]
    rows = []
    for row in frame.to_dict("records"):
        interval = NONE if pd.isna(row["low"]) else f"{row['low']:.2f} to {row['high']:.2f}"
        cells = [_or_none(row[key], duration) for key in ("other_s", "ours_s")]
        waits, speedup = _or_none(row["waiting"], percent), _or_none(row["speedup"], times)
        other = look(row["best_other"]).label if row["best_other"] else NONE
        held = _or_none(row["held_s"], duration)
        rows.append([*(row[key] for key in KEYS), other, waits, *cells, speedup, interval, held])
    return markdown_table(heads, rows)


def _or_none(value: float, write: Callable[[Any], str]) -> str:
    return NONE if pd.isna(value) else write(value)


def draw(frame: pd.DataFrame) -> Sheet:
    """A map for each workload; a frame marks the cells in which the other waits for over half of its step."""
    workloads = list(dict.fromkeys(frame["workload"]))
    with drawing(COLUMN):
        figure = Sheet(3.45 * len(workloads), 2.9, COLUMN)
        norm = TwoSlopeNorm(0.0, -1.0, max([1.0, *np.log2(frame["speedup"].dropna())]))
        for axes, workload in zip(figure.subplots(1, len(workloads), squeeze=False)[0], workloads, strict=True):
            here = frame[frame["workload"] == workload]
            profiles, devices = (list(dict.fromkeys(here[key])) for key in ("profile", "device"))
            grid = here.pivot(index="profile", columns="device", values="speedup").loc[profiles, devices]
            axes.imshow(np.ma.masked_invalid(np.log2(grid)), cmap="PuOr", norm=norm, aspect="auto")
            axes.set_xticks(range(len(devices)), devices)
            axes.set_yticks(range(len(profiles)), profiles)
            axes.grid(visible=False)
            axes.set_title(workload)
            for row in here.itertuples():
                x, y = devices.index(row.device), profiles.index(row.profile)
                said = f"{row.speedup:.2g}×" if row.speedup == row.speedup else NONE
                other = look(row.best_other).label if row.best_other else "nobody"
                back = axes.text(x, y, f"{said}\n{other}", ha="center", va="center", fontsize=6, color=INK.text)
                back.set_bbox({"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1})
                if row.waiting > MOST:
                    axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, ec=INK.text, lw=1.2))
        figure.suptitle(f"{look(OURS).label} against the best other system", x=0.01, ha="left", fontweight="bold")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def names(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())

    parser.add_argument("--profiles", type=names, default=tuple(PROFILES))
    parser.add_argument("--devices", type=names, default=DEVICES)
    parser.add_argument("--workloads", type=names, default=WORKLOADS)
    parser.add_argument("--systems", type=names, default=(), help="all of the files, unless given; ours among them")
    parser.add_argument("--seeds", type=names, default=("0", "1", "2"))
    parser.add_argument("--set", dest="changes", action="append", default=[], help="change a key of the files")
    parser.add_argument("--trials", type=int, default=8, help="of tuning, each system; 0: as the file stands")
    parser.add_argument("--records", type=Path, default=Path("build/own"))
    parser.add_argument("--out", type=Path, default=Path("results/reference/own"))
    options = vars(parser.parse_args())
    out: Path = options.pop("out")
    plan = Plan(**{**options, "changes": tuple(options["changes"])})
    frame = pd.concat([part for workload in plan.workloads for part in measured(plan, workload)], ignore_index=True)
    cells = compared(frame)
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / "systems.csv", index=False, float_format="%.6g")
    cells.to_csv(out / "grid.csv", index=False, float_format="%.6g")
    write_whole(out / "grid.md", markdown(cells) + "\n")
    save(draw(cells), out / "grid.png")
    print(markdown(cells))


if __name__ == "__main__":
    main()
