"""How much sooner `concord` reaches the target than the best other system, over networks, devices and workloads.

    python benchmarks/own_grid [--profiles lan,wanify-8] [--devices m60] [--workloads own] [--systems a,b]
                                  [--seeds 0,1,2] [--set KEY=VALUE] [--trials 8] [--records build/own] [--out DIR]

Five stages, each of which goes on where it was stopped:

1. Systems are tuned alike on the workload's file (`testbed tune`; `--trials 0` takes the file as it stands).
2. Every system is played on the file's own network and device until the target is reached, which tells how many steps
   it needs, seed by seed. What averages every so many steps, a period that a slow network or a fast device would have
   longer than it was tuned for here, is played with `LONGER` ones beside its own, each as one more system; and who is
   first wherever a round is dear with `SELDOM` ones, of which one round may be all it needs, and twice the file's
   steps.
3. In every cell all others are timed (`--timing-only`, with the sizes that stage 2 recorded): their time to the
   target is when the steps of stage 2 are done here. Of those that go by the network (`OVERLAPS`) the steps depend on
   it, and they are played in every cell; `LATE` ones until the best other is there, and with more than one seed if
   the first is by then. Where one of the rest has made the file's steps before any other system is at the target, and
   is not there itself, it is played with half as many more, and so on (`MORE`): who waits for nobody has steps to
   spare, and the schedule of its rate is told so. Ours is until it is there, to tell how late it is. On a network of
   more regions the steps of stage 2 are the fewest there may be: the more parts a batch is in, the more do those need
   whose workers train each by itself. Whoever is the best there by these is played with as many regions, until who is
   the best was (`confirmed`).
4. Ours and the best other of the file's own network, on its own device and on the fastest, are played for as many steps
   each, for the final metric; and ours for as many as it makes in the other's time. Until every worker holds the model,
   either way: who ends between two averagings takes one right then, as in the second map.
5. Where ours is at least twice as soon as who waits for over half of its time, that one is played there, too.

Two maps: when the model that a system reports is at the target, and when every worker holds one that is. Of ours that
is the end of a run besides, played once in each cell with as many steps as the target took (`closing`); of what
averages every so many steps its next averaging, or one right then, as Local SGD does it; all others hold it at once.

Writes systems.csv, finals.csv and wholes.csv each time that a workload is done, and `own_map.py` makes of them what
people read. What they hold of workloads that are not asked for stays.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
from own_map import AIM, MOST
from own_plays import PROFILES, Plan, at_most, cell, length, played, region_count, settings
from own_rows import (
    COLUMNS,
    OF_COPIES,
    OURS,
    ahead,
    averaged_right_then,
    closing,
    ends_of,
    in_as_much_time,
    is_there,
    needed_by,
    of_others,
    of_played,
    steps_needed,
    until_held,
)
from own_tuned import BRIEF, LATE, is_brief, is_seldom, together_of, tuned

import testbed
from testbed.experiment.load import load

OVERLAPS = (OURS, "weightgrad", "deco")  # workers go on meanwhile: the steps to a target depend on the network
DEVICES = ("m60", "l40s", "h100")
WORKLOADS = {"own": 400, "own-gpt": 1300}  # and the steps after which final metrics are compared
WORKERS, FLAT = "-workers", "-flat"  # what is between workers: in the tree, and past the LPSs
# Searched when the others were played already, once more or for the first time: their plays have folders of their own.
AGAIN = {
    "streaming-diloco-workers-damped": "-more",
    "sparseloco-flat": "-more",
    "cocod-flat": "-more",
    "streaming-diloco-workers": WORKERS,
    "local-sgd-4-bits": WORKERS,
    "muloco-flat": FLAT,
    "local-sgd": "-again",
    "hierarchical-local-sgd": "-again",
    "ef21": "-by-long-run",
    "muloco": "-by-long-run",
    "dgc": "-by-long-run",
    "demo": "-late",
}
BESIDE = {"own": (), "own-gpt": ("muloco-flat",)}  # whose final metrics as well: they make the same steps as ours
MORE = (1.5, 2, 3, 4, 6, 8)  # times the file's steps, for who has made these before anybody else is there
PLAYING = Lock()  # of what several cells need
MAP = Path(__file__).with_name("own_map.py")


@dataclass(frozen=True)
class Others:
    """Some of a workload's others: their run, and the steps that each seed took.

    `needed`: those steps, between two of them where the tests say so, and `resolution`, the part by which they may be
    off. `periods`: see `together_of`. `more`: the settings that they are played with.
    """

    run: testbed.Run
    needed: pd.DataFrame
    periods: Mapping[str, int]
    more: Sequence[str]


@dataclass(frozen=True)
class Base:
    """What is known of a workload on the file's own network.

    `kinds`: the others, by what is added to the names of their folders. `overlapping`: those of the file that are
    played in every cell. `steps`, `regions`, `device`: the file's.
    """

    experiment: str
    kinds: Mapping[str, Others]
    overlapping: Sequence[str]
    steps: int
    regions: int
    device: str

    @classmethod
    def of(cls, plan: Plan, workload: str) -> Base:
        """Play it, or read it."""
        experiment = tuned(plan, workload)
        known = load(experiment)[0].experiment
        kinds, steps, folder = {}, known.training.steps, plan.records / workload

        def kind_of(name: str) -> str:
            since = next((kind for each, kind in AGAIN.items() if f"{name}-".startswith(f"{each}-")), "")
            fast = "-fast" if name.endswith("-fast") else ""
            how = f"{BRIEF}{fast}" if is_brief(name) else fast or ("-seldom" if is_seldom(known, name) else "")
            return f"{since if since in (WORKERS, FLAT) else ''}{how}" if how else since

        others = [name for name in known.systems if name not in OVERLAPS]
        for kind in sorted(set(map(kind_of, others))):
            chosen = {name: together_of(known, name) for name in others if kind_of(name) == kind}
            more = at_most(2 * steps) if any(is_seldom(known, name) for name in chosen) else []
            kinds[kind] = others_in(plan, folder / f"base{kind}", experiment, chosen, more)
        overlapping = [name for name in known.systems if name in OVERLAPS]
        return cls(experiment, kinds, overlapping, steps, len(known.topology.regions), known.compute.device)


def others_in(
    plan: Plan,
    folder: Path,
    experiment: str,
    periods: Mapping[str, int],
    more: Sequence[str],
    *where: str,
) -> Others:
    """Play some of the others to the target, on the file's own network unless `where` says another."""
    run = played(plan, folder, experiment, periods, "--seeds", ",".join(plan.seeds), *where, *more)
    needed = steps_needed(run)
    return Others(run, needed[needed.index.isin(periods, level="system")], periods, more)


def measured(plan: Plan, workload: str) -> list[pd.DataFrame]:
    """Every system and seed in every cell: `steps`, `target_s`, `held_s` and `computing_s`, till the target."""
    base = Base.of(plan, workload)
    cells = [(profile, device) for device in plan.devices for profile in plan.profiles]  # slow devices need fewer steps
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # a cell's plays take one core, one after the other
        frames = pool.map(lambda each: Cell(plan, workload, base, *each).measured(), cells)
        return [
            frame.assign(workload=workload, profile=profile, device=device)
            for (profile, device), frame in zip(cells, frames, strict=True)
        ]


@dataclass(frozen=True)
class Cell:
    """A network and a device."""

    plan: Plan
    workload: str
    base: Base
    profile: str
    device: str

    def measured(self) -> pd.DataFrame:
        """Ours played, and the others timed."""
        all_ = ["--seeds", ",".join(self.plan.seeds)]
        whole = {name: self._play(name, [name], *all_) for name in self.base.overlapping if name not in LATE}
        others = pd.concat([self._timed(f"timed{kind}", known) for kind, known in self.base.kinds.items()])
        if region_count(self.profile) != self.base.regions:
            others = self._confirmed(others, [of_played(run, 0.0) for name, run in whole.items() if name != OURS])
        others = averaged_right_then(others).drop(columns=OF_COPIES, errors="ignore")
        first_s = ahead(others, "target_s").min()
        for name in whole:
            for steps in (int(self.base.steps * times) for times in MORE):
                too_late = name != OURS and whole[name].summary["time_s"].mean() >= first_s
                if is_there(whole[name]) or too_late:  # of ours it is told how late it is
                    break
                whole[name] = self._play(f"{name}-{steps}-steps", [name], *all_, *at_most(steps))
        rows = [of_played(run, self._end_s(run) if name == OURS else 0.0) for name, run in whole.items()]
        known = pd.concat([*rows, others], ignore_index=True)
        return pd.concat([known, *self._late(known.query("system != @OURS"))], ignore_index=True)

    def _late(self, known: pd.DataFrame) -> list[pd.DataFrame]:
        """`LATE` ones, until the best that is known is at the target and held: later than that is not the best."""
        names = [name for name in self.base.overlapping if name in LATE]
        if not names:
            return []
        firsts = [ahead(known, column).min() for column in ("target_s", "held_s")]
        until = [] if pd.isna(firsts).any() else settings(f"run.stop_after_s={max(firsts):.4g}")
        rows = []
        for name in names:
            run = self._play(f"{name}-first", [name], "--seeds", self.plan.seeds[0], *until)
            if is_there(run):
                run = self._play(name, [name], "--seeds", ",".join(self.plan.seeds), *until)
            rows.append(of_played(run, 0.0))
        return rows

    def _confirmed(self, others: pd.DataFrame, overlapping: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Where a network has more regions than the file's: with the steps that the best need there."""
        kind_of = {name: kind for kind, known in self.base.kinds.items() for name in known.periods}
        while True:
            known = pd.concat([*overlapping, averaged_right_then(others)])
            leads = (ahead(known, column) for column in ("target_s", "held_s"))
            best = {str(lead.idxmin()) for lead in leads if len(lead)} & kind_of.keys()
            if not best:
                return others
            name = min(best)
            there = self.base.kinds[kind_of.pop(name)]
            folder = self.plan.records / self.workload / f"base-{region_count(self.profile)}-regions-{name}"
            with PLAYING:  # it is the same on all devices
                periods, where = {name: there.periods[name]}, cell(self.profile, self.base.device)
                here = others_in(self.plan, folder, self.base.experiment, periods, there.more, *where)
            others = pd.concat([others.query("system != @name"), self._timed(f"timed-{name}", here)])

    def _timed(self, folder: str, known: Others) -> pd.DataFrame:
        """When others have done here the steps that they need."""
        if not len(known.needed):
            return pd.DataFrame(columns=COLUMNS)
        sized = ["--timing-only", "--sizes", os.path.relpath(known.run.folder), "--seeds", self.plan.seeds[0]]
        most = ceil(known.needed["steps"].max()) + max(known.periods.values())
        timed = self._play(folder, list(known.periods), *sized, *length(most))
        return of_others(timed, known.needed, known.periods)

    def _end_s(self, run: testbed.Run) -> float:
        """What ours takes from its last step until every worker holds the average."""
        seed = self.plan.seeds[0]
        steps = needed_by(run, seed)
        all_messages = settings(f"run.timeline_steps={min(steps, 1000)}")  # those of the end are what is looked at
        return closing(self._play("end", [OURS], "--seeds", seed, *length(steps), *all_messages))

    def _play(self, folder: str, systems: Sequence[str], *arguments: str) -> testbed.Run:
        here = self.plan.records / self.workload / f"{self.profile}-{self.device}"
        where = cell(self.profile, self.device)
        return played(self.plan, here / folder, self.base.experiment, systems, *where, *arguments, alone=False)


def finals(plan: Plan, workload: str, systems: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Ours and the best other of the file's own network after as many steps and in as much time, seed by seed.

    On the file's own device, and on the fastest; on the former `BESIDE`, too. `systems`: see `measured`. `cells`: the
    map so far, as `own_map.py` writes it.
    """
    known = load(tuned(plan, workload))[0].experiment
    own = known.compute.device
    devices = dict.fromkeys([own, plan.devices[-1]])
    here = "workload == @workload and profile == @known.topology.profile"
    best = cells.query(f"{here} and map == 'target_s'").set_index("device")["best_other"].dropna()
    ends = {
        device: Ends(plan, workload, known, device, systems.query(f"{here} and device == @device"))
        for device in devices
    }
    found = [
        of_device.both("finals" if device == own else f"finals-{device}", best.get(device))
        for device, of_device in ends.items()
    ]
    ours = found[0].query("system == @OURS and alike == 'steps'")
    beside = [name for name in BESIDE[workload] if name in known.systems and name != best.get(own)]
    more = [ends[own].beside(name, ours) for name in beside]
    rows = pd.concat([*found, *more], ignore_index=True).drop(columns="mean_step_s")
    return rows.assign(workload=workload)


@dataclass(frozen=True)
class Ends:
    """Of `finals`, one device's; `cell`: what `systems` says of the file's own network there."""

    plan: Plan
    workload: str
    known: Any
    device: str
    cell: pd.DataFrame

    def both(self, folder: str, other: str | None) -> pd.DataFrame:
        """Ours and another."""
        both = self._after(folder, [OURS, other] if other else [OURS], WORKLOADS[self.workload])
        longer = self._in_as_much_time(folder, both) if other else []
        return pd.concat([both.assign(alike="steps"), *(each.assign(alike="time") for each in longer)])

    def beside(self, name: str, ours: pd.DataFrame) -> pd.DataFrame:
        """One more other; `ours` is after as many steps."""
        folder = f"finals-{name}"
        theirs = self._after(folder, [name], WORKLOADS[self.workload])
        longer = self._in_as_much_time(folder, pd.concat([ours, theirs]))
        return pd.concat([theirs.assign(alike="steps"), *(each.assign(alike=f"time-{name}") for each in longer)])

    def _in_as_much_time(self, folder: str, both: pd.DataFrame) -> list[pd.DataFrame]:
        """Ours for as long as the other takes, and the other; nothing where the end alone takes longer than that."""
        as_long = in_as_much_time(both)
        return [self._after(f"{folder}-longer", [OURS], as_long), both.query("system != @OURS")] if as_long else []

    def _after(self, folder: str, systems: Sequence[str], steps: int) -> pd.DataFrame:
        """What systems come to on the file's own network in so many steps."""
        at, where = self.plan.records / self.workload / folder, settings(f'compute.device="{self.device}"')
        words = ["--seeds", ",".join(self.plan.seeds), *where, *length(steps)]
        run = played(self.plan, at, tuned(self.plan, self.workload), systems, *words)
        periods = {name: together_of(self.known, name) for name in systems if name not in OVERLAPS}
        return until_held(ends_of(run), self.cell, periods).assign(device=self.device)


def wholes(plan: Plan, workload: str, systems: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """The best others of the cells where ours is twice as soon as who waits, played there: `target_s` by `timed_s`.

    With one seed: their steps are those of stage 2, and what is to be seen is whether they take as long as was timed.
    """
    columns, rows = ["workload", "profile", "device", "system", "seed", "timed_s", "target_s"], []
    said = cells.query("workload == @workload and map == 'target_s'")
    said = said[(said["speedup"] >= AIM) & (said["waiting"] > MOST)]
    if not len(said):
        return pd.DataFrame(columns=columns)
    experiment = tuned(plan, workload)
    known = load(experiment)[0].experiment
    for profile, device, name in said[["profile", "device", "best_other"]].itertuples(index=False):
        more = at_most(2 * known.training.steps) if is_seldom(known, name) else []
        folder = plan.records / workload / f"{profile}-{device}" / f"whole-{name}"
        words = ["--seeds", plan.seeds[0], *cell(profile, device), *more]
        found = of_played(played(plan, folder, experiment, [name], *words), 0.0)
        timed = systems.query("workload == @workload and profile == @profile and device == @device and system == @name")
        both = found.merge(timed[["seed", "target_s"]].rename(columns={"target_s": "timed_s"}), on="seed")
        rows.append(both.assign(workload=workload, profile=profile, device=device))
    return pd.concat(rows)[columns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def names(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())

    parser.add_argument("--profiles", type=names, default=tuple(PROFILES))
    parser.add_argument("--devices", type=names, default=DEVICES)
    parser.add_argument("--workloads", type=names, default=tuple(WORKLOADS))
    parser.add_argument("--systems", type=names, default=(), help="all of the files, unless given; ours among them")
    parser.add_argument("--seeds", type=names, default=("0", "1", "2"))
    parser.add_argument("--set", dest="changes", action="append", default=[], help="change a key of the files")
    parser.add_argument("--trials", type=int, default=8, help="of tuning, each system; 0: as the file stands")
    parser.add_argument("--records", type=Path, default=Path("build/own"))
    parser.add_argument("--out", type=Path, default=Path("results/reference/own"))
    options = vars(parser.parse_args())
    if unknown := [name for name in options["workloads"] if name not in WORKLOADS]:
        parser.error(f"--workloads: no workload '{unknown[0]}'; known: {', '.join(WORKLOADS)}")
    out: Path = options.pop("out")
    plan = Plan(**{**options, "changes": tuple(options["changes"])})
    systems, ends, confirmed = (of_the_rest(out, name, plan.workloads) for name in ("systems", "finals", "wholes"))
    for workload in plan.workloads:  # what is known after each is written: the next takes hours
        systems = pd.concat([systems, *measured(plan, workload)], ignore_index=True)
        cells = mapped(out, systems=systems)
        ends = pd.concat([ends, finals(plan, workload, systems, cells)], ignore_index=True)
        confirmed = pd.concat([confirmed, wholes(plan, workload, systems, cells)], ignore_index=True)
        mapped(out, finals=ends, wholes=confirmed)


def of_the_rest(out: Path, name: str, workloads: Sequence[str]) -> pd.DataFrame:
    """What a kept table holds of workloads that are not asked for."""
    path = out / f"{name}.csv"
    return pd.read_csv(path).query("workload not in @workloads") if path.is_file() else pd.DataFrame()


def mapped(out: Path, **tables: pd.DataFrame) -> pd.DataFrame:
    """Keep tables, workloads in their order, and make the map of what is kept: its cells."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if len(table):
            table = table.sort_values("workload", key=lambda each: each.map([*WORKLOADS].index), kind="stable")
        # Of tables put together some columns may be objects, whose numbers would be written with all their digits.
        table.infer_objects().to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    subprocess.run([sys.executable, "-P", MAP, out], check=True)
    return pd.read_csv(out / "grid.csv")


if __name__ == "__main__":
    main()
