"""How much sooner `concord` reaches the target than the best other system, over networks, devices and workloads.

    python benchmarks/own_grid [--profiles lan,wanify-8] [--devices m60] [--workloads own] [--systems a,b]
                                  [--seeds 0,1,2] [--set KEY=VALUE] [--trials 8] [--records build/own] [--out DIR]

Four stages, each of which goes on where it was stopped:

1. Systems are tuned alike on the workload's file (`testbed tune`; `--trials 0` takes the file as it stands).
2. Every system is played on the file's own network and device until the target is reached, which tells how many steps
   it needs, seed by seed. What averages every so many steps, a period that a slow network or a fast device would have
   longer than it was tuned for here, is played with `LONGER` ones beside its own, each as one more system; and who is
   first wherever a round is dear with `SELDOM` ones, of which one round may be all it needs, and twice the file's
   steps.
3. In every cell all others are timed (`--timing-only`, with the sizes that stage 2 recorded): their time to the target
   is when the steps of stage 2 are done here. Of those that go by the network (`OVERLAPS`) the steps depend on it, and
   they are played in every cell. Where such a one has made the file's steps before any other system is at the target,
   and is not there itself, it is played with half as many more, and so on (`MORE`): who waits for nobody has steps to
   spare, and the schedule of its rate is told so. On a network of more regions the steps of stage 2 are the fewest
   there may be: the more parts a batch is in, the more do those need whose workers train each by itself. Whoever is
   the best there by these is played with as many regions, until who is the best was (`confirmed`).
4. Ours and the best other of the file's own cell are played for as many steps each, for the final metric; and ours for
   as many as it makes in the other's time.

Two maps: when the model that a system reports is at the target, and when every worker holds one that is. Of ours that
is the end of a run besides, played once in each cell with as many steps as the target took (`closing`); of what
averages every so many steps its next averaging, or of Local SGD one right then; all others hold it at once.

Writes systems.csv and finals.csv each time that a workload is done, and `own_map.py` makes of them what people read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
import tomli_w
from own_rows import (
    COLUMNS,
    OURS,
    ahead,
    closing,
    ends_of,
    in_as_much_time,
    is_there,
    needed_by,
    of_others,
    of_played,
    steps_needed,
)

import testbed
from testbed.experiment.load import find, load
from testbed.files import write_whole
from testbed.interpreter import testbed as command
from testbed.record.info import DONE

OVERLAPS = (OURS, "weightgrad", "deco")  # workers go on meanwhile: the steps to a target depend on the network
PROFILES = {
    "weightgrad-ec2": (("us-west-1", "us-east-1"), "us-east-2"),
    "wanify-8": (("us-west-1", "ap-northeast-1"), "us-east-1"),
    "skyplane-22": (("us-east-1", "eu-west-1", "ap-northeast-1", "ap-southeast-2"), "us-west-2"),
    "residential": (("home-1", "home-2"), "home-3"),
    "lan": (("us-west-1", "us-east-1"), "us-east-2"),
}
DEVICES = ("m60", "l40s", "h100")
WORKLOADS = {"own": 400, "own-gpt": 1300}  # and the steps after which final metrics are compared
LONGER = (100, 200)  # steps between two averagings
SELDOM = {"local-sgd": (400, 800)}  # of these besides, with twice the file's steps
# Searched when the others were played already, once more or for the first time: their plays have folders of their own.
AGAIN = {
    "local-sgd": "-again",
    "hierarchical-local-sgd": "-again",
    "ef21": "-by-long-run",
    "muloco": "-by-long-run",
    "dgc": "-by-long-run",
}
# By workload, who is first on a fast device, where one average or none is all that a target takes, and searched there
# once more, by another name: with periods up to 200 steps where that is in a region, and with 800 where it is on a WAN.
FAST = {"own": "hierarchical-local-sgd", "own-gpt": "local-sgd-800"}
THERE = "l40s"
MORE = (1.5, 2, 3, 4, 6, 8)  # times the file's steps, for who has made these before anybody else is there
PLAYING = Lock()  # of what several cells need
MAP = Path(__file__).with_name("own_map.py")


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
        return settings(*self.changes)


def settings(*changes: str) -> list[str]:
    """`KEY=VALUE`, each, on the command line."""
    return [part for change in changes for part in ("--set", change)]


def called(*arguments: str, alone: bool = True) -> None:
    """Run `testbed`, on one thread where it is not `alone`; an error ends this script, too."""
    environment = {} if alone else {"OMP_NUM_THREADS": "1"}
    subprocess.run(command(*arguments), check=True, env=os.environ | environment)


def played(
    plan: Plan, folder: Path, experiment: str, systems: Iterable[str], *arguments: str, alone: bool = True
) -> testbed.Run:
    """The run in a folder, begun or gone on with where it is not done; one play at a time where it is not `alone`."""
    quietly = ["--quiet", *([] if alone else ["--jobs", "1"])]
    run = newest(folder / Path(experiment).stem)
    if run is None:
        chosen = ["--systems", ",".join(systems), "--out", str(folder)]
        called("run", experiment, *chosen, *quietly, *plan.changed, *arguments, alone=alone)
    else:
        if old := [name for name in systems if is_of_before(plan, run, experiment, name)]:
            raise SystemExit(f"{run.folder}: {', '.join(old)}: not with what {experiment} says now; delete the folder")
        if is_done(run):
            return run
        called("run", "--resume", str(run.folder), *quietly, alone=alone)
    run = newest(folder / Path(experiment).stem)
    assert run is not None
    return run


def is_of_before(plan: Plan, run: testbed.Run, experiment: str, system: str) -> bool:
    """Whether a system was searched again since: of the options that both know one differs."""
    was = run.info.experiment["systems"][system]
    now = load(experiment)[0].experiment.as_dict()["systems"][system]
    asked = {change.partition("=")[0].strip() for change in plan.changes}
    return any(was[key] != now[key] for key in was.keys() & now.keys() if f"systems.{system}.{key}" not in asked)


def newest(folder: Path) -> testbed.Run | None:
    """The latest run of an experiment, where there is one."""
    kept = sorted(folder.glob("*/run.json"))
    run = testbed.load(kept[-1].parent) if kept else None
    assert run is None or isinstance(run, testbed.Run)
    return run


def is_done(run: testbed.Run) -> bool:
    """Whether nothing is left to play."""
    asked = run.info.experiment
    statuses = [result.status for result in run.results]
    return len(statuses) == len(asked["systems"]) * len(asked["run"]["seeds"]) and set(statuses) <= set(DONE)


def tuned(plan: Plan, workload: str) -> str:
    """The file of a workload with every system tuned, and those that average at longer periods as well."""
    searched, to = plan.records / f"{workload}-tuned.toml", plan.records / f"{workload}.toml"
    if plan.trials and not searched.is_file():
        how = ["--out", str(plan.records / f"tune-{workload}"), "--seeds", "100", "--trials", str(plan.trials)]
        names = list(plan.systems) or list(load(workload)[0].experiment.systems)
        called("tune", workload, *plan.changed, "--systems", ",".join(names), *how, "--to", str(searched))
    if not to.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        data = longer(searched if plan.trials else find(workload), plan.systems)
        write_whole(to, tomli_w.dumps(data))
    name = FAST[workload]
    data = tomllib.loads(to.read_text())
    if plan.trials and name in data["systems"] and f"{name}-fast" not in data["systems"]:
        data["systems"][f"{name}-fast"] = {"of": name, **searched_there(plan, workload, to)}
        write_whole(to, tomli_w.dumps(data))
    return str(to)


def searched_there(plan: Plan, workload: str, file: Path) -> dict[str, Any]:
    """What a search on a fast device finds for one of a file's systems; a period that was chosen for it stays."""
    name, to = FAST[workload], plan.records / f"{workload}-fast.toml"
    if not to.is_file():
        where = settings(f'compute.device="{THERE}"')
        if is_seldom(load(file)[0].experiment, name):
            where += [*at_most(2 * load(file)[0].experiment.training.steps), "--fixed", "local_steps"]
        how = ["--out", str(plan.records / f"tune-{workload}-fast"), "--seeds", "100", "--trials", str(plan.trials)]
        called("tune", str(file), *plan.changed, *where, "--systems", name, *how, "--to", str(to))
    found: dict[str, Any] = tomllib.loads(to.read_text())["systems"][name]
    return found


def is_seldom(experiment: Any, system: str) -> bool:
    """Whether a system averages so seldom that it has twice the file's steps."""
    return period_of(experiment, system) > max(LONGER)


def longer(path: Path, chosen: Sequence[str]) -> dict[str, Any]:
    """A file's tables with one more system for each of `LONGER` and each system that averages more often than that."""
    data, known = tomllib.loads(path.read_text()), load(path)[0].experiment
    systems: dict[str, Any] = {}
    for name in chosen or known.systems:
        options, period = data["systems"].get(name, {}), period_of(known, name)
        systems[name] = options
        for steps in (*LONGER, *SELDOM.get(name, ())) if period else ():
            if steps > period:
                systems[f"{name}-{steps}"] = {**options, "of": options.get("of", name), "local_steps": steps}
    return {**data, "systems": systems}


def period_of(experiment: Any, system: str) -> int:
    """After how many steps a system averages again, if only in the regions; 0: it says nothing of the kind."""
    return int(getattr(experiment.systems[system], "local_steps", 0))


def together_of(experiment: Any, system: str) -> int:
    """After how many steps all workers hold the same again; 0: it says nothing of the kind."""
    return period_of(experiment, system) * int(getattr(experiment.systems[system], "rounds", 1))


def region_count(profile: str) -> int:
    """Regions with workers."""
    return len(PROFILES[profile][0])


def cell(profile: str, device: str) -> list[str]:
    """A network and a device, on the command line."""
    regions, server = PROFILES[profile]
    listed = ", ".join(f'"{region}"' for region in regions)
    return settings(
        f'topology.profile="{profile}"',
        f"topology.regions=[{listed}]",
        f'topology.server_region="{server}"',
        f'compute.device="{device}"',
    )


def at_most(steps: int) -> list[str]:
    """So many steps, until the target is reached, on the command line."""
    return settings(f"training.steps={steps}", f"run.checkpoint_steps={steps}")


def length(steps: int) -> list[str]:
    """So many steps, whether or not the target is reached, on the command line."""
    return [*at_most(steps), *settings("run.stop_at_target=false")]


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
            if name.endswith("-fast"):
                return "-fast"
            if is_seldom(known, name):
                return "-seldom"
            return next((kind for each, kind in AGAIN.items() if f"{name}-".startswith(f"{each}-")), "")

        others = [name for name in known.systems if name not in OVERLAPS]
        for kind in ("", "-seldom", *dict.fromkeys(AGAIN.values()), "-fast"):
            chosen = {name: together_of(known, name) for name in others if kind_of(name) == kind}
            more = at_most(2 * steps) if any(is_seldom(known, name) for name in chosen) else []
            if chosen:
                kinds[kind] = others_in(plan, folder / f"base{kind}", experiment, chosen, more)
        overlapping = [name for name in known.systems if name in OVERLAPS]
        return cls(experiment, kinds, overlapping, steps, len(known.topology.regions), known.compute.device)


def others_in(
    plan: Plan, folder: Path, experiment: str, periods: Mapping[str, int], more: Sequence[str], *where: str
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
        whole = {name: self._play(name, [name], *all_) for name in self.base.overlapping}
        others = pd.concat([self._timed(f"timed{kind}", known) for kind, known in self.base.kinds.items()])
        if region_count(self.profile) != self.base.regions:
            others = self._confirmed(others, [of_played(run, 0.0) for name, run in whole.items() if name != OURS])
        first_s = ahead(others, "target_s").min()
        for name in whole:
            for steps in (int(self.base.steps * times) for times in MORE):
                if is_there(whole[name]) or whole[name].summary["time_s"].mean() >= first_s:
                    break
                whole[name] = self._play(f"{name}-{steps}-steps", [name], *all_, *at_most(steps))
        rows = [of_played(run, self._end_s(run) if name == OURS else 0.0) for name, run in whole.items()]
        return pd.concat([*rows, others], ignore_index=True)

    def _confirmed(self, others: pd.DataFrame, overlapping: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Where a network has more regions than the file's: with the steps that the best need there."""
        kind_of = {name: kind for kind, known in self.base.kinds.items() for name in known.periods}
        while True:
            leads = (ahead(pd.concat([*overlapping, others]), column) for column in ("target_s", "held_s"))
            best = {str(lead.idxmin()) for lead in leads if len(lead)} & kind_of.keys()
            if not best:
                return others
            name = min(best)
            known = self.base.kinds[kind_of.pop(name)]
            folder = self.plan.records / self.workload / f"base-{region_count(self.profile)}-regions-{name}"
            with PLAYING:  # it is the same on all devices
                periods, where = {name: known.periods[name]}, cell(self.profile, self.base.device)
                here = others_in(self.plan, folder, self.base.experiment, periods, known.more, *where)
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
        return closing(self._play("end", [OURS], "--seeds", seed, *length(needed_by(run, seed))))

    def _play(self, folder: str, systems: Sequence[str], *arguments: str) -> testbed.Run:
        here = self.plan.records / self.workload / f"{self.profile}-{self.device}"
        where = cell(self.profile, self.device)
        return played(self.plan, here / folder, self.base.experiment, systems, *where, *arguments, alone=False)


def finals(plan: Plan, workload: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Ours and the best other of the file's own cell after as many steps and in as much time, seed by seed.

    `cells`: the map so far, as `own_map.py` writes it.
    """
    experiment = tuned(plan, workload)
    known = load(experiment)[0].experiment
    own = cells.query("workload == @workload and map == 'target_s'")
    own = own[(own["profile"] == known.topology.profile) & (own["device"] == known.compute.device)]
    others = list(own["best_other"].dropna())

    def play(folder: str, systems: Sequence[str], steps: int) -> testbed.Run:
        at = plan.records / workload / folder
        return played(plan, at, experiment, systems, "--seeds", ",".join(plan.seeds), *length(steps))

    steps = WORKLOADS[workload]
    both = play("finals", [OURS, *others], steps)
    rows = [ends_of(both).assign(alike="steps")]
    if others:
        longer = play("finals-longer", [OURS], in_as_much_time(both, steps))
        of_others = ends_of(both).query("system != @OURS")
        rows.append(pd.concat([ends_of(longer), of_others]).assign(alike="time"))
    return pd.concat(rows, ignore_index=True).assign(workload=workload)


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
    out: Path = options.pop("out")
    plan = Plan(**{**options, "changes": tuple(options["changes"])})
    systems, ends = pd.DataFrame(), pd.DataFrame()
    for workload in plan.workloads:  # what is known after each is written: the next takes hours
        systems = pd.concat([systems, *measured(plan, workload)], ignore_index=True)
        cells = mapped(out, systems=systems)
        ends = pd.concat([ends, finals(plan, workload, cells)], ignore_index=True)
        mapped(out, finals=ends)


def mapped(out: Path, **tables: pd.DataFrame) -> pd.DataFrame:
    """Keep tables, and make the map of what is kept: its cells."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    subprocess.run([sys.executable, "-P", MAP, out], check=True)
    return pd.read_csv(out / "grid.csv")


if __name__ == "__main__":
    main()
