"""What is asked for, and its plays: each in a folder of its own, that is read where it is done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import testbed
from testbed.experiment.load import load
from testbed.interpreter import testbed as command
from testbed.record.info import DONE

PROFILES = {
    "weightgrad-ec2": (("us-west-1", "us-east-1"), "us-east-2"),
    "wanify-8": (("us-west-1", "ap-northeast-1"), "us-east-1"),
    "skyplane-22": (("us-east-1", "eu-west-1", "ap-northeast-1", "ap-southeast-2"), "us-west-2"),
    "residential": (("home-1", "home-2"), "home-3"),
    "lan": (("us-west-1", "us-east-1"), "us-east-2"),
}


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
    plan: Plan, folder: Path, experiment: str, systems: Collection[str], *arguments: str, alone: bool = True
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
